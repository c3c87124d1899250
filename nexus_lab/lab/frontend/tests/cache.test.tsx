import { signal } from "@preact/signals";
import { describe, expect, it } from "vitest";
import { openStepper } from "../src/panels/cache/stepper";
import { openTokens, readStates } from "../src/panels/cache/tokens_source";
import { centreFor } from "../src/panels/cache/centre";
import { fullCell } from "../src/panels/cache/memory";
import { windowStart } from "../src/panels/cache/token_window";
import { opFacts, opSize, rerunWords, sharedOps, stopsWhere } from "../src/panels/cache/words";
import { CachePanel } from "../src/panels/cache";
import { visibleText } from "../src/ui/visible";
import { cachePart, fakeKernel, foldStory, longCachePart, type FakeKernel } from "./fixtures_cache";
import { button, choose, click, draw, field, press, settled, type } from "./dom";

let root: HTMLElement;

async function show(kernel: FakeKernel): Promise<void> {
  root = await draw(<CachePanel client={kernel.client} />);
}

describe("Cache panel", () => {
  it("shows the program, where we stand and what the op did", async () => {
    await show(fakeKernel());
    expect(root.textContent).toContain("op 9 of 10");
    expect(root.textContent).toContain("looking back: live is op 10");
    expect(root.textContent).toContain("1,079 active of 1,942 logical: computed 648, spliced 323, repaired 108; dropped 863");
    expect(root.textContent).toContain("0.0082 nats (floor 0.0052)");
    expect(root.querySelectorAll(".op")).toHaveLength(10);
    expect(root.querySelector(".op[aria-current=step]")?.textContent).toContain("9 Repair");
  });

  it("asks for the states once per revision, and for the pieces of the window alone", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    expect(kernel.asked("cache.state")).toHaveLength(1);
    const window = kernel.asked("cache.pieces").at(-1) as { start: number; stop: number };
    expect(window.stop - window.start).toBeLessThan(40);
    expect(root.querySelectorAll(".tk")).toHaveLength(window.stop - window.start);
    kernel.push({ cache: { ...cachePart(9), cells_used: 2900 } });
    await settled();
    expect(kernel.asked("cache.state")).toHaveLength(1);
    kernel.push({ cache: cachePart(10) });
    await settled();
    expect(kernel.asked("cache.state")).toHaveLength(2);
  });

  it("steps by buttons and keys, and speaks the op", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await click(button(root, "Step back"));
    await settled();
    await press(root.querySelector(".op[aria-current=step]")!, "ArrowLeft");
    await settled();
    await press(root.querySelector(".cache")!, "End");
    await settled();
    await press(root.querySelector(".cache")!, "Home");
    await settled();
    expect(kernel.asked("cache.goto").map(({ n }) => n)).toEqual([8, 7, 10, 1]);
    expect(kernel.client.live.value).toBe("Op 1: Append, 196 tokens; 196 active, next position 196.");
  });

  it("keeps the focus on the current card", async () => {
    await show(fakeKernel());
    const card = root.querySelector<HTMLElement>(".op[aria-current=step]")!;
    card.focus();
    await press(card, "ArrowLeft");
    await settled();
    expect(document.activeElement?.textContent).toContain("8 Splice");
  });

  it("takes no step while a field has the focus", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await press(root.querySelector('input[type="number"]')!, "ArrowLeft");
    expect(kernel.asked("cache.goto")).toHaveLength(0);
  });

  it("moves the window of tokens by keys without a step", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    const before = kernel.asked("cache.pieces").at(-1)?.start as number;
    await press(root.querySelector(".strip")!, "ArrowLeft");
    await settled();
    expect(kernel.asked("cache.pieces").at(-1)?.start).toBe(before - 8);
    expect(kernel.asked("cache.goto")).toHaveLength(0);
    await press(root.querySelector(".strip")!, "PageUp");
    await settled();
    expect(kernel.asked("cache.pieces").at(-1)?.start).toBe(before - 208);
  });

  it("goes to the next breakpoint and sets breakpoints whole", async () => {
    const kernel = fakeKernel({ cache: cachePart(2) });
    await show(kernel);
    await click(button(root, "To next breakpoint"));
    await settled();
    expect(kernel.asked("cache.next_breakpoint")).toHaveLength(1);
    expect(root.textContent).toContain("op 4 of 10");
    await click(field(root, /^tool failed/));
    expect(kernel.asked("cache.set_breakpoints")).toEqual([
      { gate: true, declined: true, dkl: true, failed: true, epsilon: 0.02 },
    ]);
  });

  it("names the fork, says what it runs again, and sends where and with what", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    expect(root.textContent).toContain("Shares 5 ops: half a turn cannot be asked. Re-runs 5 ops, 601 tokens.");
    const policy = [...root.querySelectorAll("select")].find((select) => select.value === "rolling_drop_repos")!;
    await choose(policy, "full");
    await click(button(root, "Fork as r-015"));
    await settled();
    expect(kernel.asked("cache.fork")).toEqual([{ at: 9, settings: { policy: "full", repair: "leading", k: 4 } }]);
    expect(root.textContent).toContain("r-015 forked from op 9: 1 op, 38 tokens run again. Turn 4 is asked again.");
  });

  it("refuses to fork with K of 1, with the formula", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await type(field(root, "K"), "1", true);
    expect(root.textContent).toContain("K must exceed 1");
    await click(button(root, "Fork as r-015"));
    expect(kernel.asked("cache.fork")).toHaveLength(0);
  });

  it("keeps a thousand ops out of the document", async () => {
    await show(fakeKernel({ cache: longCachePart(1000) }));
    expect(root.querySelectorAll(".op").length).toBeLessThan(40);
    expect(root.textContent).toContain("op 1,000 of 1,000");
  });

  it("puts pieces and notes in as text", async () => {
    const part = cachePart(9);
    part.ops[8] = { ...part.ops[8]!, note: "<img src=x onerror=alert(1)>" };
    await show(fakeKernel({ cache: part }));
    expect(root.querySelector("img")).toBeNull();
    expect(root.textContent).toContain("<img src=x");
  });

  it("says that there is nothing yet", async () => {
    await show(fakeKernel({ cache: { ...cachePart(1), ops: [], cursor: 0 } }));
    expect(root.textContent).toContain("No cache program yet");
  });
});

describe("drawings of the kernel", () => {
  const node = (name: string) => root.querySelector<SVGElement>(`[aria-label="node of ${name}"]`)!;

  it("are drawn as elements, and text in them stays text", async () => {
    await show(fakeKernel());
    expect(root.querySelectorAll(".drawings > .box")).toHaveLength(6);
    expect(root.querySelector("#told-tree")?.textContent).toBe("tree with {} <b>");
    const rect = node("tree").querySelector("rect")!;
    expect([rect.namespaceURI, rect.getAttribute("x"), rect.getAttribute("d")]).toEqual(["http://www.w3.org/2000/svg", "1", "2"]);
    expect(field(root, /field of policy/).value).toBe("trim");
  });

  it("are asked again when the cache has changed, and not for every part", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    const before = kernel.asked("cache.view").length;
    kernel.push({ cache: { ...cachePart(), cells_used: 1 } });
    await settled();
    expect(kernel.asked("cache.view")).toHaveLength(before);
    kernel.push({ cache: { ...cachePart(), drawn: 2 } });
    await settled();
    expect(kernel.asked("cache.view")).toHaveLength(before + 3);
  });

  it("share the values of their fields, and keep the focus", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    const select = field(root, /field of policy/);
    select.focus();
    await choose(select as unknown as HTMLSelectElement, "full");
    await settled();
    await click(field(root, /switch of policy/));
    await settled();
    expect(kernel.asked("cache.study").at(-1)).toMatchObject({ values: { policy: "full", repos: "" } });
    expect(root.querySelector("#told-tree")?.textContent).toBe('tree with {"policy":"full","repos":""} <b>');
    expect(document.activeElement).toBe(field(root, /field of policy/));
  });

  it("ask for what their buttons name, by key as well", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await press(node("tree"), "Enter");
    await settled();
    expect(kernel.asked("cache.plan")).toEqual([{ values: { op: "4" } }]);
    await click(button(root, "restore in restore"));
    await settled();
    expect(kernel.asked("cache.restore")).toEqual([{ values: { op: "4" } }]);
    expect(kernel.asked("cache.goto")).toHaveLength(0);
  });
});

describe("stepping", () => {
  it("sends only the newest of many steps while the kernel is at work", async () => {
    const kernel = fakeKernel();
    await settled();
    kernel.hold("cache.goto");
    const stepper = openStepper(kernel.client);
    for (let press = 0; press < 5; press += 1) stepper.by(-1);
    expect(stepper.shown.value).toBe(4);
    expect(kernel.asked("cache.goto").map(({ n }) => n)).toEqual([8]);
    kernel.release("cache.goto");
    await settled();
    kernel.release("cache.goto");
    await settled();
    expect(kernel.asked("cache.goto").map(({ n }) => n)).toEqual([8, 4]);
    expect(stepper.shown.value).toBe(4);
    expect(kernel.client.told.cache.value?.cursor).toBe(4);
    stepper.close();
  });
  it("asks for a step to where an older part still stands", async () => {
    const cache = signal(cachePart(9));
    const asked: number[] = [];
    const request = async (_method: string, { n }: { n: number }) => void asked.push(n);
    const stepper = openStepper({ told: { cache }, request } as never);
    stepper.by(-1);
    await settled();
    cache.value = cachePart(8);
    stepper.by(-1);
    // The kernel has answered, and the part that tells of op 7 is on its way.
    await settled();
    stepper.by(1);
    await settled();
    expect(asked).toEqual([8, 7, 8]);
    stepper.close();
  });
  it("stays within the program", async () => {
    const kernel = fakeKernel();
    await settled();
    const stepper = openStepper(kernel.client);
    stepper.by(Number.POSITIVE_INFINITY);
    stepper.by(5);
    await settled();
    expect(kernel.asked("cache.goto").map(({ n }) => n)).toEqual([10]);
    stepper.close();
  });
});

describe("token states", () => {
  it("drops the reply of a revision that has passed", async () => {
    const kernel = fakeKernel();
    kernel.hold("cache.state");
    const source = openTokens(kernel.client);
    await settled();
    kernel.push({ cache: cachePart(3) });
    await settled();
    expect(kernel.asked("cache.state")).toHaveLength(2);
    kernel.release("cache.state", 1);
    await settled();
    expect(source.states.value?.revision).toBe(3);
    kernel.release("cache.state", 0);
    await settled();
    expect(source.states.value?.revision).toBe(3);
    expect(source.states.value?.states).toHaveLength(407);
    source.close();
  });
  it("refuses buffers of another length", () => {
    const view = new DataView(new ArrayBuffer(4));
    expect(() => readStates({ n: 4, segments: [] }, [view, view], 1)).toThrow("another length");
  });
});

describe("words of the cache", () => {
  const { ops } = cachePart();
  it("size an op with its sign", () => {
    expect([0, 4, 5, 8].map((index) => opSize(ops[index]!))).toEqual(["+196 tokens", "−863 tokens", "624 tokens", "108 tokens"]);
  });
  it("say where breakpoints stop", () => {
    expect(stopsWhere(ops, "gate", true)).toBe("op 7, turn 4");
    expect(stopsWhere(ops, "failed", true)).toBe("never in this run");
    expect(stopsWhere(ops, "failed", false)).toBe("off");
  });
  it("count what a fork runs again", () => {
    const { fork_points } = cachePart();
    expect(rerunWords({ ops, fork_points: [...fork_points, { said: 9, end: 10 }] }, 10)).toBe("Goes on from here; nothing is run again.");
    const half = rerunWords({ ops, fork_points }, 7);
    expect(half).toMatch(/^Shares 5 ops: half a turn cannot be asked\. Re-runs 5 ops, /);
    expect(rerunWords({ ops, fork_points }, 5)).toBe(half.slice(half.indexOf("Re-runs")));
    expect([0, 1, 3, 4, 5].map((at) => sharedOps(fork_points, at))).toEqual([1, 1, 1, 4, 5]);
  });
  it("leave out what was not measured", () => {
    expect(opFacts(ops[0]!).map((row) => row.name)).not.toContain("D_KL");
  });
  it("show pieces that cannot be seen", () => {
    expect([" the", "a\n\t", "  ", "", " ".repeat(9)].map(visibleText)).toEqual(["the", "a\\n\\t", "␣␣", "␣", "␣␣␣"]);
  });
});

describe("layout of the cache panel", () => {
  it("keeps the window within the tokens", () => {
    expect(windowStart(0, 25, 1942)).toBe(0);
    expect(windowStart(1941, 25, 1942)).toBe(1917);
    expect(windowStart(5, 25, 10)).toBe(0);
  });
  it("centres the window on what the op touched", () => {
    const { ops } = cachePart();
    const at = (cursor: number) => centreFor(ops, cursor, Uint8Array.from(foldStory(cursor).states));
    expect([at(2), at(5), at(6), at(9)]).toEqual([204, 196, null, 1511]);
  });
  it("gives a full cell that holds the longest sequence", () => {
    expect(fullCell(cachePart().slots)).toBe(2048);
    expect(fullCell([])).toBe(256);
  });
});
