import { describe, expect, it } from "vitest";
import { change as changeText } from "../src/panels/session/compare";
import { byTurn, choose as choosePair, differs } from "../src/panels/session/pairs";
import { bytes, count, fixed, int, ms, percent, signed } from "../src/format";
import { AGENT, BAR, COMPARISON, fakeKernel, MODELS, PARTS } from "./fixtures";
import { button, change, choose, click, field, mount, settle, type } from "./dom";

function open(parts = PARTS, panel: "session" | "models" = "session") {
  const kernel = fakeKernel(parts);
  kernel.client.panel.value = panel;
  return { kernel, root: mount(kernel.client) };
}
const check = async (root: Element, name: string) => click(field(root, name) as unknown as HTMLElement);

describe("session panel", () => {
  it("compares the two runs that are checked, the first as A", async () => {
    const { kernel, root } = open();
    await check(root, "compare r-012");
    expect(root.textContent).toContain("Choose a run to hold against r-012");
    await check(root, "compare r-013");
    await settle();
    expect(kernel.asked("session.compare")).toEqual([{ a: "r-012", b: "r-013" }]);
    expect(root.textContent).toContain("−802\u00a0ms (−67\u00a0%)".replaceAll("\u00a0ms", " ms"));
    await click(button(root, "Swap"));
    await settle();
    expect(kernel.asked("session.compare")[1]).toEqual({ a: "r-013", b: "r-012" });
  });

  it("opens the spans of a turn, or shows only differences over 2 %", async () => {
    const { root } = open();
    await check(root, "compare r-012");
    await check(root, "compare r-013");
    await settle();
    const names = () => [...root.querySelectorAll("table.pairs tbody tr td:nth-child(2)")].map((cell) => cell.textContent);
    expect(names()).toHaveLength(3);
    await click(button(root, /all 7 spans/));
    expect(names()).toContain("splice issue_write");
    await click(field(root, /^differences over/) as unknown as HTMLElement);
    expect(names()).toEqual(["cache drop, repos", "splice issue_write"]);
    expect(root.textContent).toContain("12 of 14 pairs differ by 2 % or less and are hidden");
  });

  it("filters runs by model, policy, status and note", async () => {
    const { root } = open();
    await type(field(root, "Filter runs"), "tokenless");
    expect(root.textContent).toContain("No run matches");
    await type(field(root, "Filter runs"), "rolling_drop recovered");
    expect(root.querySelectorAll('table[aria-label="Runs"] tbody tr')).toHaveLength(1);
  });

  it("says at what time the last event was, and when the journal is gone", async () => {
    const { kernel, root } = open();
    expect(root.textContent).toMatch(/Last event at \d\d:\d\d:\d\d\./);
    const part = PARTS.session!;
    await change(() => kernel.push({ session: { ...part, journal: { ...part.journal!, gone: true } } }));
    expect(root.textContent).toContain("The journal is gone");
    expect(root.textContent).not.toContain("Journal is safe");
  });

  it("says about how large an export will be, and that it is an estimate", async () => {
    const { kernel, root } = open();
    const told = () => root.textContent!.replace(/\u00a0/g, " ");
    await settle();
    expect(told()).toContain("about 391 KiB, an estimate");
    await click(field(root, /^Include message contents/) as unknown as HTMLElement);
    expect(told()).toContain("about 488 KiB, an estimate");
    await click(field(root, /^HTML/) as unknown as HTMLElement);
    expect(told()).toContain("about 1.9 MiB, an estimate");
    expect(kernel.asked("session.estimate").at(-1)).toEqual({ run: "r-014", target: "html", contents: true, redact: "all" });
    expect(kernel.asked("session.export")).toEqual([]);
  });

  it("exports the live run without contents unless told, redacted unless told", async () => {
    const { kernel, root } = open();
    await click(button(root, "Export"));
    await settle();
    expect(kernel.asked("session.export")).toEqual([{ run: "r-014", target: "parquet", contents: false, redact: "all" }]);
    expect(root.textContent).toContain("~/data/r-014.parquet");
    await click(field(root, /^Include message contents/) as unknown as HTMLElement);
    await choose(field(root, /^Redact/) as unknown as HTMLSelectElement, "none");
    await click(field(root, /^OTLP JSON/) as unknown as HTMLElement);
    await click(root.querySelectorAll<HTMLElement>('table[aria-label="Runs"] tbody tr')[2]!);
    await click(button(root, "Export"));
    expect(kernel.asked("session.export")[1]).toEqual({ run: "r-012", target: "otlp", contents: true, redact: "none" });
  });

  it("replays a run with what was changed, and only with a model", async () => {
    const { kernel, root } = open();
    await click(button(root, "Replay r-014 with…"));
    await choose(field(root.querySelector("dialog[open]")!, /^Policy/) as unknown as HTMLSelectElement, "full");
    await click(button(root, "Replay 4 turns"));
    expect(kernel.asked("session.replay")).toEqual([{ run: "r-014", settings: { policy: "full" } }]);
    await change(() => kernel.push({ agent: { ...AGENT, ready: false, missing: "No model is loaded." } }));
    expect(root.querySelector("dialog[open]")!.textContent).toContain("No model is loaded.");
  });

  it("opens a bundle and imports a text", async () => {
    const { kernel, root } = open();
    await click(button(root, "Open bundle…"));
    await type(field(root.querySelector("dialog[open]")!, /^Path of a .nexus/), "/data/x.nexus");
    await click(button(root.querySelector("dialog[open]")!, "Open"));
    expect(kernel.asked("session.open")).toEqual([{ path: "/data/x.nexus" }]);
    await click(button(root.querySelector("dialog[open]")!, "Close"));
    await click(button(root, "Import transcript…"));
    await type(field(root.querySelector("dialog[open]")!, "or its text"), "{}");
    await click(button(root.querySelector("dialog[open]")!, "Import"));
    expect(kernel.asked("session.import")).toEqual([{ text: "{}" }]);
  });
});

describe("pairs", () => {
  it("fills A, then B, then replaces B; unchecking A moves B up", () => {
    let choice = { a: null, b: null } as { a: string | null; b: string | null };
    const steps = ["x", "y", "z", "x", "z"].map((name) => (choice = choosePair(choice, name)));
    expect(steps).toEqual([{ a: "x", b: null }, { a: "x", b: "y" }, { a: "x", b: "z" }, { a: "z", b: null }, { a: null, b: null }]);
  });

  it("takes a lone top pair as the turn, else sums", () => {
    const [summed] = byTurn(COMPARISON.pairs);
    expect(summed!.a_ms).toBeCloseTo(3.4 + 34.5 + 532 + 421 + 2487);
    const [headed] = byTurn([
      { turn: 1, depth: 0, name: "turn", a_ms: 10, b_ms: 12 },
      { turn: 1, depth: 1, name: "route", a_ms: 3, b_ms: null },
    ]);
    expect(headed).toEqual({ turn: 1, a_ms: 10, b_ms: 12, pairs: [{ turn: 1, depth: 0, name: "route", a_ms: 3, b_ms: null }] });
  });

  it("calls 2 % noise and a missing side a difference", () => {
    expect(differs({ a_ms: 100, b_ms: 102 })).toBe(false);
    expect(differs({ a_ms: 100, b_ms: 102.1 })).toBe(true);
    expect(differs({ a_ms: null, b_ms: 1 })).toBe(true);
    expect(differs({ a_ms: null, b_ms: null })).toBe(false);
  });

  it("writes changes with sign, unit and share", () => {
    expect(changeText(2113, 1250, "")).toBe("−863 (−41\u00a0%)");
    expect(changeText(0.0052, 0.0082, "nats")).toBe("+0.0030 nats");
    expect(changeText(null, 5, "ms")).toBe("only in B");
    expect(changeText(5, null, "ms")).toBe("only in A");
    expect(changeText(3, 3, "ms")).toBe("0");
    expect(changeText(0, 3, "")).toBe("+3");
  });
});

describe("models panel", () => {
  it("loads the chosen model with context and threads, and says what would not fit", async () => {
    const { kernel, root } = open(PARTS, "models");
    await click(root.querySelectorAll<HTMLElement>('table[aria-label="Models"] tbody tr')[1]!);
    expect(root.querySelector('table[aria-label="Models"] tr.sel .st.warn')!.textContent).toContain("10.2");
    await type(field(root, "Context, tokens"), "4096", true);
    await click(button(root, "Load"));
    expect(kernel.asked("models.load")).toEqual([{ path: "/models/qwen2.5-14b.gguf", n_ctx: 4096, threads: 2 }]);
  });

  it("estimates memory at a context length that is not applied yet", async () => {
    const kernel = fakeKernel(PARTS, { "models.estimate": () => ({ rows: MODELS.rows.map((row) => ({ ...row, memory_bytes: 2 ** 30 })) }) });
    kernel.client.panel.value = "models";
    const root = mount(kernel.client);
    await type(field(root, "Context, tokens"), "4096", true);
    await settle();
    expect(kernel.asked("models.estimate")).toEqual([{ n_ctx: 4096 }]);
    const table = root.querySelector('table[aria-label="Models"]')!.textContent!;
    expect(table).toContain("at 4,096 tokens");
    expect(table).toContain("1.0\u00a0GiB");
  });

  it("does not load what is loaded as it is, nor a broken file", async () => {
    const { kernel, root } = open(PARTS, "models");
    await click(button(root, "Load again"));
    await click(root.querySelectorAll<HTMLElement>('table[aria-label="Models"] tbody tr')[3]!);
    await click(button(root, "Load"));
    expect(kernel.asked("models.load")).toEqual([]);
    expect(root.textContent).toContain("Download it again.");
  });

  it("shows a decline with what happens instead", async () => {
    const { root } = open(PARTS, "models");
    await click(root.querySelectorAll<HTMLElement>('table[aria-label="Models"] tbody tr')[2]!);
    expect(root.textContent).toContain("splice declined: M-RoPE model");
    expect(root.textContent).toContain("Blocks are prefilled; the answer is the same.");
  });

  it("shows a load under way", () => {
    const bar = { ...BAR, engine: "loading" as const, progress: { label: "reading weights", done: 30, total: 100 } };
    const { root } = open({ ...PARTS, bar, models: MODELS }, "models");
    expect(root.querySelector(".wide-progress [role=progressbar]")!.getAttribute("aria-valuenow")).toBe("30");
  });
});

describe("format", () => {
  it("writes numbers as the workbench does", () => {
    expect([int(1117), int(-12), int(null), int(NaN)]).toEqual(["1,117", "−12", "–", "–"]);
    expect([fixed(-0.0001, 2), fixed(-1.5, 1)]).toEqual(["0.00", "−1.5"]);
    expect([ms(3.4), ms(0.009), ms(284.4), ms(2505), ms(0)].map((text) => text.replace("\u00a0", " "))).toEqual(["3.4 ms", "0.009 ms", "284 ms", "2.50 s", "0.0 ms"]);
    expect([percent(0.347), percent(2.61, 0)].map((text) => text.replace("\u00a0", " "))).toEqual(["34.7 %", "261 %"]);
    expect([bytes(9961472), bytes(12), bytes(null)].map((text) => text.replace("\u00a0", " "))).toEqual(["9.5 MiB", "12 bytes", "–"]);
    expect([count(1, "token"), count(2, "token"), count(1234, "entry", "entries")]).toEqual(["1 token", "2 tokens", "1,234 entries"]);
    expect([signed(0, String), signed(3, String), signed(-3, String)]).toEqual(["0", "+3", "−3"]);
  });
});
