import { describe, expect, it } from "vitest";
import { ATTRIBUTES } from "../src/jsx";
import type { PanelName, Parts, ToView } from "../src/protocol";
import { AGENT, BAR, PARTS, REGISTRY, WAITING_TURN } from "./fixtures";
import { cachePart, M_ROPE, splicePart, spliceRun } from "./fixtures_cache";

const STORY = { cache: cachePart(), splice: splicePart() };

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
    expect(fs.statSync(path.join(fresh, "widget.js")).size).toBeLessThan(150_000);
    fs.rmSync(fresh, { recursive: true });
  });

  it("shortens no name that is on the wire, and gives elements theirs again", async () => {
    const { fs } = await node();
    const listed = (constant: string) =>
      new RegExp(`const ${constant} = \`([^\`]*)\``).exec(fs.readFileSync("build.mjs", "utf8"))![1]!.trim().split(/\s+/);
    const wire: string = fs.readFileSync("src/protocol.ts", "utf8");
    const names = [...listed("INTERNAL"), ...listed("ATTRIBUTES")];
    expect(names.filter((name) => new RegExp(`\\b${name}\\??:`).test(wire))).toEqual([]);
    // A value of the wire chooses from a map by its name; a caption does not.
    const captions = ["layer"];
    expect(names.filter((name) => wire.includes(`"${name}"`) && !captions.includes(name))).toEqual([]);
    expect(listed("ATTRIBUTES")).toEqual(Object.keys(ATTRIBUTES));
    expect(Object.entries(ATTRIBUTES).filter(([key, value]) => key !== value)).toEqual([]);
  });

  it("draws every panel as the source does", { timeout: 60_000 }, async () => {
    // @ts-expect-error -- it has no types
    const built = await import("../../static/widget.js");
    const source = await import("../src/widget");
    const drawn = async (widget: typeof source.default, panel: PanelName, change: Partial<Parts>) => {
      let hear: (message: ToView, buffers: DataView[]) => void = () => undefined;
      const model = {
        get: (name: string) => (name === "panel" ? panel : null),
        on: (event: string, callback: typeof hear) => void (event === "msg:custom" && (hear = callback)),
        off: () => undefined,
        send: () => undefined,
      };
      const el = document.createElement("div");
      document.body.append(el);
      const end = widget.render({ model, el } as never);
      const list = REGISTRY.tools;
      hear({ kind: "parts", revision: 1, parts: { ...STORY, ...PARTS, ...change } }, []);
      hear({ kind: "parts", revision: 2, parts: { registry: { ...REGISTRY, tools: list.slice(1) } }, kept: { registry: { tools: [0, 1, 0, 0] } } }, []);
      // Each view has ids and a clock of its own. Effects come with frames: what stays for a while is all there.
      const read = () => el.innerHTML.replace(/\bnl-[a-z0-9]{8,}|\d\d:\d\d:\d\d/g, "");
      let html = "";
      for (let same = 0; same < 3; ) {
        await new Promise((resolve) => setTimeout(resolve, 40));
        same = read() === html ? same + 1 : 0;
        html = read();
      }
      end();
      el.remove();
      return html;
    };
    const failed = { ...WAITING_TURN, state: "failed" as const, problem: { type: "E", message: "m", next_step: null } };
    const states: Partial<Parts>[] = [
      {},
      ...(["unloaded", "loading", "idle", "busy", "stopping"] as const).map((engine) => ({ bar: { ...BAR, engine } })),
      { agent: { ...AGENT, turns: [failed] }, splice: { ...splicePart(), run: { ...spliceRun(), declined: M_ROPE } } },
      { splice: { ...splicePart(), unavailable: M_ROPE }, cache: { ...cachePart(), ops: [] } },
    ];
    for (const panel of Object.keys(PARTS).filter((name) => name !== "bar") as PanelName[]) {
      for (const [index, change] of states.entries()) {
        if (index > 0 && panel !== "routing" && !(panel in change)) continue;
        const html = await drawn(source.default, panel, change);
        expect(html.length, panel).toBeGreaterThan(1000);
        expect(await drawn(built.default, panel, change), `${panel} ${index}`).toBe(html);
      }
    }
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
