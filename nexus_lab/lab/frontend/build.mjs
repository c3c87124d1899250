/**
 * Bundles the views: `../static/widget.js` and `../static/widget.css` (with `--out` into another folder), or with
 * `--dev` the page in `dev/`. The same source gives the same bytes.
 */
import { build } from "esbuild";
import { statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Names of our own props and of the client: on no wire, on no interface of the DOM, never used as text. */
const INTERNAL = `
  client part draft stepper digits rowKey headClass columns cell extent centre pressed onValue
  onPick onCheck onEnter onStep onMove onDone onRun onRerun budgetKind ownColours stoppable
  nextBreakpoint wantPieces openKeys setTau primary quiet tight flush peek layer layers head heads
  options chosen wrap keep told fault shares nPast tall wide endInk tile onChoose onMeasure onCapture
  onDecision onAccent rBase topK meanMs inputRef buttonRef arrived rank picked panel states
  positions frame selected onSelect pending alive nCtx rowHeight onClosed late wash Panel plan goTo
`;
/** Attributes of elements, which `src/jsx.ts` gives their full names again. */
const ATTRIBUTES = `class disabled onClick onInput onKeyDown placeholder role scope tabIndex title`;

const here = dirname(fileURLToPath(import.meta.url));
const common = {
  absWorkingDir: here,
  bundle: true,
  format: "esm",
  target: ["es2022", "chrome111", "firefox113", "safari16.4"],
  // Plain calls of h() are 8 kB shorter than what tsconfig.json's automatic runtime gives.
  tsconfigRaw: {
    compilerOptions: { jsx: "react", jsxFactory: "h", jsxFragmentFactory: "Fragment", verbatimModuleSyntax: true },
  },
  inject: ["src/jsx.ts"],
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

if (process.argv.includes("--dev")) {
  await build({
    ...common,
    entryPoints: { page: "dev/page.tsx" },
    outdir: "dev/out",
    // A page opened from disk may load scripts, but no modules.
    format: "iife",
    sourcemap: "inline",
  });
  await build({ ...common, entryPoints: { style: "src/style/index.css" }, outdir: "dev/out", inject: [] });
} else {
  const to = process.argv.indexOf("--out");
  const out = to < 0 ? join(here, "..", "static") : process.argv[to + 1];
  await build({
    ...common,
    entryPoints: { widget: "src/widget.tsx" },
    outdir: out,
    minify: true,
    mangleProps: new RegExp(`^(${`${INTERNAL} ${ATTRIBUTES}`.trim().split(/\s+/).join("|")})$`),
  });
  await build({
    ...common,
    entryPoints: { widget: "src/style/index.css" },
    outdir: out,
    inject: [],
    minify: true,
  });
  for (const name of ["widget.js", "widget.css"]) {
    console.log(`${name} ${(statSync(join(out, name)).size / 1000).toFixed(1)} kB`);
  }
}
