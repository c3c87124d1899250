import { describe, expect, it } from "vitest";
import { ranked, timesLine, gain } from "../src/panels/routing/decision";
import { DECISION, fakeKernel, PARTS, ROUTING } from "./fixtures";
import { button, change, choose, click, field, mount, press, settle, type } from "./dom";

function open(parts = PARTS) {
  const kernel = fakeKernel(parts);
  kernel.client.panel.value = "routing";
  return { kernel, root: mount(kernel.client) };
}
const slider = (root: Element) => root.querySelector<HTMLElement>('[role="slider"]')!;

describe("routing panel", () => {
  it("states the decision with its numbers", () => {
    const { root } = open();
    const text = root.querySelector(".route")!.textContent!;
    expect(text).toContain(DECISION.reason);
    expect(text).toContain("p = 0.731");
    expect(text).toContain("41.9\u00a0ms: rerank 38.4, embed 3.1");
  });

  it("names the score of a decision that no cross-encoder read", () => {
    const candidates = DECISION.candidates.map((row) => ({ ...row, cross_encoder: null }));
    const { root } = open({ ...PARTS, routing: { ...ROUTING, decisions: [{ ...DECISION, candidates }] } });
    expect(root.querySelector(".verdict")!.textContent).toMatch(/stage 1 0\.\d{4}/);
  });

  it("tells what stage 1 adds to cosine and words", () => {
    const row = { tool: "a", dense: 0.262, lexical: 0.072, score: 0.3484, cross_encoder: null, view: null };
    expect(gain(row, 0.5)).toBe(" with 0.050 for the server named or called last");
    expect(gain({ ...row, score: 0.298 }, 0.5)).toBe("");
  });
  it("lists candidates in stage-1 order with their final place", () => {
    const rows = ranked(DECISION.candidates);
    expect(rows.slice(0, 2).map(({ tool, first, final }) => [tool, first, final])).toEqual([
      ["find_duplicate", 1, 2],
      ["issue_write", 2, 1],
    ]);
    const { root } = open();
    const row = root.querySelector('table[aria-label="Candidates"] tr.sel')!;
    expect(row.textContent).toContain("issue_write");
    expect(row.textContent).toContain("▲");
    expect(root.querySelector(".matched")).toBeNull();
  });

  it("shows the text that was nearest, as text", () => {
    const [first, ...others] = DECISION.candidates;
    const nearest = { ...first!, view: "example", matched: "<b>Close</b> it as a duplicate" };
    const { root } = open({ ...PARTS, routing: { ...ROUTING, decisions: [{ ...DECISION, candidates: [nearest, ...others] }] } });
    expect(root.querySelector(".matched")!.textContent).toBe("example: <b>Close</b> it as a duplicate");
    expect(root.querySelector(".matched b")).toBeNull();
  });

  it("moves tau with keys, tells the new share at once, and applies only on Apply", async () => {
    const { kernel, root } = open();
    expect(button(root, "Apply").getAttribute("aria-disabled")).toBe("true");
    slider(root).focus();
    await press(slider(root), "ArrowRight");
    await press(slider(root), "PageUp");
    const n = ROUTING.margins.filter(({ margin }) => margin < 0.0158).length;
    expect(n).toBeGreaterThan(48);
    expect(slider(root).getAttribute("aria-valuetext")).toContain(`${n} of 240`);
    expect(root.querySelector("footer")!.textContent).toContain(`${n} of 240`);
    const table = root.querySelector('table[aria-label^="Recorded decisions"]')!;
    expect(table.querySelector("tbody tr td:nth-child(2)")!.textContent).toBe(String(n));
    expect(document.activeElement).toBe(slider(root));
    expect(kernel.asked("routing.apply")).toEqual([]);
    expect(root.textContent).toContain("in use: 0.0136");
    await click(button(root, "Apply τ 0.0158"));
    expect(kernel.asked("routing.apply")).toEqual([{ tau: 0.0158, top_k: 8 }]);
    await change(() => kernel.push({ routing: { ...ROUTING, tau: 0.0158 } }));
    expect(root.textContent).toContain("in use: 0.0158");
  });

  it("goes back to the calibrated value, and takes a typed one", async () => {
    const { root } = open();
    await type(field(root, "tau, margin threshold"), "0.05", true);
    expect(button(root, "Apply τ 0.0500")).toBeTruthy();
    await type(field(root, "tau, margin threshold"), "1000000000", true);
    expect(button(root, "Apply τ 2.0000")).toBeTruthy();
    await click(button(root, "Calibrated 0.0136"));
    expect(button(root, "Apply").getAttribute("aria-disabled")).toBe("true");
  });

  it("routes the request with the conversation and k", async () => {
    const { kernel, root } = open();
    expect(button(root, "Route").getAttribute("aria-disabled")).toBe("true");
    await type(field(root, "Request"), "close it");
    await press(field(root, "Request"), "Enter", { ctrlKey: true });
    expect(kernel.asked("routing.route")).toEqual([{ request: "close it", with_conversation: true, top_k: 8 }]);
  });

  it("reads requests from a file and takes one of them", async () => {
    const { kernel, root } = open();
    const input = field(root, "File with requests");
    const file = { name: "asked.txt", text: () => Promise.resolve("first\nsecond\n") };
    Object.defineProperty(input, "files", { value: [file], configurable: true });
    await change(() => void input.dispatchEvent(new Event("change", { bubbles: true })));
    await settle();
    expect(kernel.asked("routing.read_requests")).toEqual([{ text: "first\nsecond\n" }]);
    await click(root.querySelectorAll<HTMLElement>('table[aria-label="Requests of asked.txt"] tbody tr')[1]!);
    expect(field(root, "Request").value).toBe("second");
  });

  it("marks right, and takes a mark back", async () => {
    const { kernel, root } = open();
    await click(button(root, /Right$/));
    expect(kernel.asked("routing.mark")).toEqual([{ id: "d4", mark: "right" }]);
    const marked = { ...DECISION, mark: "right" as const };
    await change(() => {
      kernel.reply(kernel.log.length, null);
      kernel.push({ routing: { ...ROUTING, decisions: [marked, ...ROUTING.decisions.slice(1)] } });
    });
    const ids = kernel.log.flatMap((m) => (m.kind === "request" ? [m.id] : []));
    await change(() => ids.forEach((id) => kernel.reply(id, null)));
    expect(button(root, /Right$/).getAttribute("aria-pressed")).toBe("true");
    await click(button(root, "Undo"));
    expect(kernel.asked("routing.unmark")).toEqual([{ id: "d4" }]);
  });

  it("asks for the right tool when a decision is wrong", async () => {
    const { kernel, root } = open();
    await click(button(root, /Wrong…$/));
    expect(kernel.asked("routing.mark")).toEqual([]);
    const select = field(root, /^Right tool/) as unknown as HTMLSelectElement;
    const offered = [...select.options].map(({ value }) => value);
    expect(offered).not.toContain("issue_write");
    expect(offered).toContain("read_text"); // any tool of the registry, not only candidates
    await choose(select, "find_duplicate");
    await click(button(root, "Keep as example"));
    expect(kernel.asked("routing.mark")).toEqual([{ id: "d4", mark: "wrong", right_tool: "find_duplicate" }]);
  });

  it("can say that no tool was right", async () => {
    const { kernel, root } = open();
    await click(button(root, /Wrong…$/));
    await choose(field(root, /^Right tool/) as unknown as HTMLSelectElement, " none");
    await click(button(root, "Mark wrong"));
    expect(kernel.asked("routing.mark")).toEqual([{ id: "d4", mark: "wrong", right_tool: null }]);
  });

  it("follows the newest decision until an older one is chosen", async () => {
    const { kernel, root } = open();
    const rows = () => root.querySelectorAll<HTMLElement>('table[aria-label="Decisions, newest first"] tbody tr');
    await click(rows()[2]!);
    expect(root.querySelector(".sentence")!.textContent).toContain("no tool seems to fit");
    const fifth = { ...DECISION, id: "d5", turn: 5, request: "five", reason: "Five." };
    await change(() => kernel.push({ routing: { ...ROUTING, decisions: [fifth, ...ROUTING.decisions] } }));
    expect(root.querySelector(".sentence")!.textContent).toContain("no tool seems to fit");
    await click(field(root, /^follow/) as unknown as HTMLElement);
    expect(root.querySelector(".sentence")!.textContent).toContain("Five.");
  });

  it("walks the decisions with the arrow keys and keeps the focus on the row", async () => {
    const { root } = open();
    const rows = () => root.querySelectorAll<HTMLElement>('table[aria-label="Decisions, newest first"] tbody tr');
    rows()[0]!.focus();
    await press(rows()[0]!, "ArrowDown");
    expect(document.activeElement).toBe(rows()[1]);
    expect(rows()[1]!.getAttribute("aria-selected")).toBe("true");
  });

  it("writes times without losing any", () => {
    expect(timesLine({ a: 1, b: 2, c: 3, d: 4, e: 0.5, f: 0.25 })).toBe("10.8\u00a0ms: d 4.0, c 3.0, b 2.0, a 1.0, rest 0.8");
  });
});
