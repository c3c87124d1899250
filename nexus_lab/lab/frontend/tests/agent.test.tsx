import { describe, expect, it } from "vitest";
import { readArguments } from "../src/panels/agent/approval";
import { important, nested, spanWords } from "../src/panels/agent/spans";
import { changesOf, describe as words } from "../src/panels/agent/settings";
import type { SpanRow } from "../src/protocol";
import { AGENT, BAR, fakeKernel, PARTS, WAITING_TURN } from "./fixtures";
import { button, change, choose, click, field, mount, press, settle, type } from "./dom";

function open(agent = AGENT) {
  const kernel = fakeKernel({ ...PARTS, agent });
  kernel.client.panel.value = "agent";
  return { kernel, root: mount(kernel.client) };
}
const message = (root: Element) => field(root, /^Message/) as unknown as HTMLTextAreaElement;

describe("approval", () => {
  it("shows each value with its source, and says where none was found", () => {
    const { root } = open();
    const rows = [...root.querySelectorAll(".approve tbody tr")].map((row) => row.textContent);
    expect(rows).toContain("issue_number482copied from turn 4");
    expect(rows.find((text) => text?.startsWith("state_reason"))).toContain("not found in the conversation");
  });

  it("runs once", async () => {
    const { kernel, root } = open();
    await click(button(root, "Run once"));
    expect(kernel.asked("agent.approve")).toEqual([{ id: 7, allow: true, remember: false }]);
  });

  it("is sent once, even if pressed twice", async () => {
    const { kernel, root } = open();
    await click(button(root, "Run once"));
    await click(button(root, "Run once"));
    await click(button(root, "Refuse"));
    expect(kernel.asked("agent.approve")).toHaveLength(1);
  });

  it("remembers the tool for the session when told to", async () => {
    const { kernel, root } = open();
    await click(field(root, /^allow issue_write/) as unknown as HTMLElement);
    await click(button(root, "Run once"));
    expect(kernel.asked("agent.approve")).toEqual([{ id: 7, allow: true, remember: true }]);
  });

  it("refuses, and a refusal is never remembered", async () => {
    const { kernel, root } = open();
    await click(field(root, /^allow issue_write/) as unknown as HTMLElement);
    await click(button(root, "Refuse"));
    expect(kernel.asked("agent.approve")).toEqual([{ id: 7, allow: false, remember: false }]);
  });

  it("sends edited arguments, and sends nothing while they are no object", async () => {
    const { kernel, root } = open();
    await click(button(root, "Edit arguments"));
    const box = () => field(root, /^Arguments as JSON/) as unknown as HTMLTextAreaElement;
    expect(JSON.parse(box().value)).toEqual(AGENT.approval!.arguments);
    await type(box(), '{"issue_number": 48');
    await click(button(root, "Run once"));
    expect(kernel.asked("agent.approve")).toEqual([]);
    expect(root.querySelector('.approve [role="alert"]')!.textContent).toContain("JsonError");
    expect(box().getAttribute("aria-invalid")).toBe("true");
    await type(box(), '{"issue_number": 483}');
    await click(button(root, "Run once"));
    expect(kernel.asked("agent.approve")).toEqual([{ id: 7, allow: true, remember: false, arguments: { issue_number: 483 } }]);
  });

  it("shows what the kernel has against the arguments", async () => {
    const { kernel, root } = open();
    await click(button(root, "Run once"));
    const id = kernel.log.flatMap((m) => (m.kind === "request" && m.method === "agent.approve" ? [m.id] : []))[0]!;
    await change(() => kernel.fail(id, { type: "ArgumentError", message: "issue_number is no integer", next_step: "edit it" }));
    expect(root.querySelector('.approve [role="alert"]')!.textContent).toContain("issue_number is no integer");
    expect(button(root, "Run once").getAttribute("aria-disabled")).toBeNull();
  });

  it("starts afresh for the next request", async () => {
    const { kernel, root } = open();
    await click(button(root, "Edit arguments"));
    await change(() => kernel.push({ agent: { ...AGENT, approval: { ...AGENT.approval!, id: 8, arguments: { x: 1 } } } }));
    expect(root.querySelector(".approve textarea")).toBeNull();
    expect(root.querySelector(".approve tbody")!.textContent).toContain("x1");
  });

  it("refuses what is no object", () => {
    for (const text of ["", "[1]", "3", "null", '"x"', "{"]) expect(readArguments(text), text).toHaveProperty("error");
    expect(readArguments('{"a": [1]}')).toEqual({ value: { a: [1] } });
  });
});

describe("messages", () => {
  it("sends with Ctrl+Enter, and not with Enter", async () => {
    const { kernel, root } = open();
    await type(message(root), "close it");
    await press(message(root), "Enter");
    expect(kernel.asked("agent.ask")).toEqual([]);
    await press(message(root), "Enter", { ctrlKey: true });
    expect(kernel.asked("agent.ask")).toEqual([{ text: "close it" }]);
    expect(message(root).value).toBe("");
    expect(document.activeElement).toBe(message(root));
  });

  it("takes the next message while a turn runs", async () => {
    const { kernel, root } = open();
    for (const text of ["one", "two"]) {
      await type(message(root), text);
      await click(button(root, /^Send/));
    }
    expect(kernel.asked("agent.ask")).toEqual([{ text: "one" }, { text: "two" }]);
  });

  it("gives a message back that was not taken", async () => {
    const { kernel, root } = open();
    await type(message(root), "close it");
    await click(button(root, /^Send/));
    const id = kernel.log.flatMap((m) => (m.kind === "request" && m.method === "agent.ask" ? [m.id] : []))[0]!;
    await change(() => kernel.fail(id, { type: "ContextFull", message: "no room", next_step: "start anew" }));
    await settle();
    expect(message(root).value).toBe("close it");
    expect(root.textContent).toContain("no room");
  });

  it("sends nothing before the agent is ready, and says why", async () => {
    const { kernel, root } = open({ ...AGENT, turns: [], approval: null, ready: false, missing: "Load a model first." });
    await type(message(root), "close it");
    await press(message(root), "Enter", { ctrlKey: true });
    expect(kernel.asked("agent.ask")).toEqual([]);
    expect(root.textContent).toContain("Load a model first.");
  });

  it("takes a queued message back", async () => {
    const { kernel, root } = open({ ...AGENT, queue: ["a", "b"] });
    await click(button(root, "Take back: b"));
    expect(kernel.asked("agent.unqueue")).toEqual([{ index: 1 }]);
  });
});

describe("turns", () => {
  it("keeps hostile text as text", async () => {
    const evil = '<img src=x onerror="document.title=1"><script>1</script>';
    const { root } = open({
      ...AGENT,
      turns: [{
        ...WAITING_TURN, request: evil, marked: [[evil, evil]], grounds: { [evil]: evil }, answer: evil, tool: evil, server: evil, state: "called", result: evil, arguments: { [evil]: evil },
        problem: { type: evil, message: evil, next_step: evil },
        spans: [{ id: 1, parent: null, name: evil, kind: "tool", status: "error", start_ms: 0, ms: 1, detail: evil }],
      }],
      approval: { ...AGENT.approval!, tool: evil, server: evil, arguments: { [evil]: evil }, sources: { [evil]: evil } },
      queue: [evil],
    });
    await settle();
    expect(root.querySelector("img, script")).toBeNull();
    expect(root.textContent!.split(evil).length).toBeGreaterThan(8);
  });

  it("shows hidden characters by their number, so that no tool looks like another", () => {
    const evil = "evil\u202etxt.exe\u0000";
    const call = { ...AGENT.approval!, tool: evil, arguments: { [evil]: `👩\u200d💻 ${evil}` } };
    const { root } = open({ ...AGENT, turns: [{ ...WAITING_TURN, request: evil, tool: evil }], approval: call });
    expect(root.textContent).not.toMatch(/[\u202e\0]/);
    expect(root.textContent!.split("evil\\u202etxt.exe\\u0000").length).toBeGreaterThan(3);
    expect(root.textContent).toContain("👩\u200d💻");
  });

  it("says that an answer was cut, and which τ a turn ran with", () => {
    const turn = { ...WAITING_TURN, state: "called" as const, cut_at: 96, settings: { ...WAITING_TURN.settings, tau: null } };
    const { root } = open({ ...AGENT, approval: null, turns: [turn] });
    expect(root.textContent).toContain("cut at 96 tokens");
    expect(root.textContent).toMatch(/τ = 0\.\d{4} \(calibrated\)/);
  });

  it("shows the call as it is written, as text, and its arguments once they are known", async () => {
    const call = '{"name": "issue_read", "arguments": {"owner": "<img src=x>';
    const live = { ...WAITING_TURN, number: 5, state: "running" as const, tool: "issue_read", arguments: null, call };
    const { kernel, root } = open({ ...AGENT, approval: null, turns: [live] });
    const shown = () => root.querySelector('[aria-label="Arguments"]')?.textContent;
    expect(shown()).toBe(call);
    expect(root.querySelector("img")).toBeNull();
    await change(() => kernel.push({ agent: { ...AGENT, approval: null, turns: [{ ...live, call: "", arguments: { a: 1 } }] } }));
    expect(JSON.parse(shown()!)).toEqual({ a: 1 });
  });

  it("marks what a call took from the request, and says of each argument where it comes from", () => {
    const { root } = open({ ...AGENT, approval: null, turns: [AGENT.turns[0]!] });
    const marks = [...root.querySelectorAll(".turn mark")].map((mark) => [mark.textContent, mark.getAttribute("title")]);
    expect(marks).toEqual([["482", "issue_number"], ["brightloom/orchard", "owner, repo"]]);
    expect(root.querySelector(".turn .q")!.textContent!.trim()).toBe(AGENT.turns[0]!.request);
    expect(root.querySelector(".call ul")!.textContent).toContain("issue_number said in the request");
  });

  it("says of a turn that failed after its tool ran that the tool ran", async () => {
    const problem = { type: "ContextFull", message: "no room", next_step: null };
    const failed = { ...WAITING_TURN, state: "failed" as const, result: "closed", problem };
    const { kernel, root } = open({ ...AGENT, approval: null, turns: [failed] });
    const card = () => root.querySelector("details.turn")!.textContent!;
    expect(card()).toContain("what it did stays done");
    await change(() => kernel.push({ agent: { ...AGENT, approval: null, turns: [{ ...failed, result: null }] } }));
    expect(card()).not.toContain("stays done");
  });

  it("opens the newest turn alone, beside those that the user opened", async () => {
    const { kernel, root } = open();
    const opened = () => [...root.querySelectorAll("details.turn")].map((turn) => (turn as HTMLDetailsElement).open);
    expect(opened()).toEqual([false, false, false, true]);
    const fifth = { ...WAITING_TURN, number: 5, state: "running" as const };
    await change(() => kernel.push({ agent: { ...AGENT, approval: null, turns: [...AGENT.turns.slice(0, 3), { ...WAITING_TURN, state: "called" }, fifth] } }));
    expect(opened()).toEqual([false, false, false, false, true]);
    await change(() => {
      root.querySelector<HTMLDetailsElement>("details.turn")!.open = true;
    });
    await change(() => kernel.push({ agent: { ...AGENT, approval: null, turns: [...AGENT.turns, fifth, { ...fifth, number: 6 }] } }));
    expect(opened()).toEqual([true, false, false, false, false, true]);
  });

  it("fetches earlier turns, and keeps those that leave the part", async () => {
    const turn = (number: number) => ({ ...AGENT.turns[0]!, number });
    const kernel = fakeKernel({ ...PARTS, agent: { ...AGENT, approval: null, turns: [turn(3), turn(4)], turns_before: 2 } }, {
      "agent.turns": ({ start, stop }) => ({ turns: Array.from({ length: Number(stop) - Number(start) }, (_, i) => turn(Number(start) + i + 1)) }),
    });
    kernel.client.panel.value = "agent";
    const root = mount(kernel.client);
    const numbers = () => [...root.querySelectorAll("details.turn .n")].map((cell) => cell.textContent);
    await settle();
    expect(numbers()).toEqual(["3", "4"]);
    await change(() => kernel.push({ agent: { ...AGENT, approval: null, turns: [turn(4), turn(5)], turns_before: 3 } }));
    expect(numbers()).toEqual(["3", "4", "5"]);
    await click(button(root, "2 earlier turns"));
    await settle();
    expect(kernel.asked("agent.turns")).toEqual([{ start: 0, stop: 2 }]);
    expect(numbers()).toEqual(["1", "2", "3", "4", "5"]);
  });

  it("says declined with its reason and what it cost", async () => {
    const { root } = open({ ...AGENT, approval: null, turns: [AGENT.turns[2]!] });
    const note = root.querySelector(".note.warn")!.textContent!;
    expect(note).toContain("splice declined: find_duplicate.atb was compiled by another tokenizer");
    expect(note).toContain("240 ms");
  });

  it("shows how far a running prefill is", async () => {
    const { kernel, root } = open({ ...AGENT, approval: null, turns: [{ ...WAITING_TURN, state: "running" }] });
    await change(() => kernel.push({ bar: { ...BAR, engine: "busy", progress: { label: "prefill", done: 512, total: 1179 } } }));
    expect(root.querySelector(".running")!.textContent).toContain("512 of 1,179");
  });

  it("nests spans, leaves the turn itself out, and keeps orphans", () => {
    const span = (id: number, parent: number | null, kind: string, start_ms: number): SpanRow => ({ id, parent, name: kind, kind, status: "ok", start_ms, ms: 1, detail: "" });
    const rows = nested([span(1, null, "turn", 0), span(3, 1, "tool", 5), span(2, 1, "gate", 1), span(4, 2, "rerank", 2), span(9, 77, "drop", 9)]);
    expect(rows.map(({ id, depth }) => [id, depth])).toEqual([[2, 0], [4, 1], [3, 0], [9, 0]]);
    expect(important(rows).map(({ id }) => id)).toEqual([2, 3, 9]);
    expect(important(rows.map((row) => ({ ...row, status: "declined" })))).toHaveLength(4);
    expect(spanWords({ ...rows[0]!, kind: "generate", name: "answer", detail: "32 tokens" })).toEqual(["respond", "answer, 32 tokens"]);
    expect(spanWords({ ...rows[0]!, kind: "splice", name: "splice", detail: "" })).toEqual(["splice", ""]);
  });
});

describe("settings", () => {
  it("names a change on Apply, sends only what changed, and drops what holds", async () => {
    const { kernel, root } = open();
    expect(button(root, "Apply").getAttribute("aria-disabled")).toBe("true");
    await type(field(root, "K"), "6", true);
    await click(button(root, "Apply K 6"));
    expect(kernel.asked("agent.apply")).toEqual([{ settings: { k: 6 } }]);
    await change(() => kernel.push({ agent: { ...AGENT, settings: { ...AGENT.settings, k: 6 } } }));
    expect(button(root, "Apply").getAttribute("aria-disabled")).toBe("true");
  });

  it("counts several changes, lists them, and can discard them", async () => {
    const { kernel, root } = open();
    await choose(field(root, /^Ask before/) as unknown as HTMLSelectElement, "every");
    await type(field(root, "Repair budget, %"), "40", true);
    expect(button(root, "Apply 2 changes")).toBeTruthy();
    expect(root.textContent).toContain("ask before every, budget 40 %");
    await click(button(root, "Discard"));
    expect(button(root, "Apply").getAttribute("aria-disabled")).toBe("true");
    expect(kernel.asked("agent.apply")).toEqual([]);
  });

  it("keeps numbers in range and gives back what is no number", async () => {
    const { root } = open();
    await type(field(root, "K"), "1", true);
    expect(button(root, "Apply K 2")).toBeTruthy();
    await type(field(root, "Keep responses"), "-3", true);
    expect(field(root, "Keep responses").value).toBe("0");
  });

  it("limits the calls of a request and the seconds of a turn, and takes an empty field as no limit", async () => {
    const { kernel, root } = open();
    await type(field(root, "Calls, at most"), "0", true);
    expect(field(root, "Calls, at most").value).toBe("1");
    expect(field(root, "Turn, most seconds").placeholder).toBe("unlimited");
    await type(field(root, "Turn, most seconds"), "2.5", true);
    await click(button(root, "Apply 2 changes"));
    expect(kernel.asked("agent.apply")).toEqual([{ settings: { max_calls: 1, turn_seconds: 2.5 } }]);
    const settings = { ...AGENT.settings, max_calls: 1, turn_seconds: 2.5 };
    await change(() => kernel.push({ agent: { ...AGENT, settings } }));
    await type(field(root, "Turn, most seconds"), "", true);
    expect(button(root, "Apply seconds at most unlimited")).toBeTruthy();
    expect(changesOf(settings, { turn_seconds: null })).toEqual({ turn_seconds: null });
  });

  it("takes an empty tau as the calibrated one", () => {
    expect(changesOf(AGENT.settings, { tau: null, k: 4 })).toEqual({ tau: null });
    expect(words({ tau: null, shadow: false })).toBe("τ calibrated, shadow off");
  });
});
