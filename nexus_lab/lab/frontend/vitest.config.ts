import { defineConfig } from "vitest/config";

export default defineConfig({
  // The built bundle, which is tested as well, stands beside this folder.
  server: { fs: { allow: [".."] } },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  test: {
    environment: "jsdom",
    setupFiles: ["tests/setup.ts"],
    include: ["tests/**/*.test.{ts,tsx}"],
    pool: "forks",
    maxWorkers: 1,
  },
});
