import { describe, expect, it } from "vitest";

declare const process: { cwd(): string; execPath: string };

/** Node's modules, without their types. */
async function node() {
  const [fs, path, os, child] = await Promise.all(
    ["node:fs", "node:path", "node:os", "node:child_process"].map((name) => import(/* @vite-ignore */ name)),
  );
  return { fs, path, os, child };
}

describe("bundle", () => {
  it("is what the source gives, small, and asks nothing of the network", async () => {
    const { fs, path, os, child } = await node();
    const built = path.join(process.cwd(), "..", "static");
    const fresh = fs.mkdtempSync(path.join(os.tmpdir(), "widget-"));
    child.execFileSync(process.execPath, ["build.mjs", "--out", fresh], { cwd: process.cwd() });
    for (const name of ["widget.js", "widget.css"]) {
      const text: string = fs.readFileSync(path.join(fresh, name), "utf8");
      expect(text === fs.readFileSync(path.join(built, name), "utf8"), `${name} is stale: npm run build`).toBe(true);
      const hosts = new Set([...text.matchAll(/https?:\/\/([\w.:-]+)/g)].map(([, host]) => host));
      hosts.delete("www.w3.org"); // names of XML vocabularies
      hosts.delete("127.0.0.1:8000"); // a placeholder
      expect([...hosts]).toEqual([]);
    }
    expect(fs.statSync(path.join(fresh, "widget.js")).size).toBeLessThan(150 * 1024);
    fs.rmSync(fresh, { recursive: true });
  });

  it("shortens no name that is on the wire", async () => {
    const { fs } = await node();
    const [, names] = /const INTERNAL =\s*\/\^\((.*)\)\$\//.exec(fs.readFileSync("build.mjs", "utf8"))!;
    const wire: string = fs.readFileSync("src/protocol.ts", "utf8");
    expect(names!.split("|").filter((name) => new RegExp(`\\b${name}\\??:`).test(wire))).toEqual([]);
  });

  it("writes no markup of its own", async () => {
    const { fs, path } = await node();
    const files: string[] = fs.readdirSync("src", { recursive: true }).filter((name: string) => /\.tsx?$/.test(name));
    expect(files.length).toBeGreaterThan(40);
    for (const name of files) {
      const text: string = fs.readFileSync(path.join("src", name), "utf8");
      expect(/innerHTML|outerHTML|insertAdjacentHTML|document\.write/.test(text), name).toBe(false);
    }
  });
});
