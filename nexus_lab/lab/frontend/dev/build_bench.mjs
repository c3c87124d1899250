/** Bundles the benchmark page's script and style to `dev/out/`; nothing of it is shipped. */
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const frontend = join(dirname(fileURLToPath(import.meta.url)), "..");
await build({
  absWorkingDir: frontend,
  entryPoints: { bench: "src/canvas/bench.ts", "bench-style": "src/style/index.css" },
  outdir: "dev/out",
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome111", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
});
