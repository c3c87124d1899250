import { signal } from "@preact/signals";
import { describe, expect, it, vi } from "vitest";
import { floorWords, likeliest, speedWords } from "../src/panels/splice/cards";
import { budgetChoice, calibratedBudget } from "../src/panels/splice/draft";
import { FRAME_MS, fetchOrder, frameValues, openFilm } from "../src/panels/splice/film";
import { nextGroups, scaleFor } from "../src/panels/splice/next_token";
import { openPlayer } from "../src/panels/splice/player";
import { cellText, driftNumber, figureRange } from "../src/panels/splice/reading";
import { SplicePanel } from "../src/panels/splice";
import type { FrameReply } from "../src/protocol";
import { fakeKernel, M_ROPE, SETTINGS, splicePart, spliceRun, type FakeKernel } from "./fixtures_cache";
import { button, choose, click, draw, press, settled, type } from "./dom";

let root: HTMLElement;

async function show(kernel: FakeKernel): Promise<void> {
  root = await draw(<SplicePanel client={kernel.client} />);
}

const select = (name: string) =>
  [...root.querySelectorAll("label")].find((label) => label.textContent!.startsWith(name))!.querySelector("select")!;
const slide = (value: string) => type(root.querySelector<HTMLInputElement>(".kslider")!, value);

describe("Splice panel", () => {
  it("sets each result beside what it is compared with", async () => {
    await show(fakeKernel());
    const cards = [...root.querySelectorAll(".card")].map((card) => card.textContent?.replace(/\u00a0/g, " "));
    expect(cards[0]).toContain("0.0082 nats");
    expect(cards[0]).toContain("1.6× floor");
    expect(cards[1]).toContain("same");
    expect(cards[2]).toContain("3.80× faster");
    expect(cards[3]).toContain("108 of 431");
    expect(root.textContent).toContain("30 layers × 3 KV heads");
    expect(root.textContent).toContain("compiled by another tokenizer; prefilled instead, 240 ms");
  });

  it("fetches the last frame first, then the others, once each", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await settled();
    const asked = kernel.asked("splice.frame");
    expect(asked[0]).toEqual({ run: "trial-1", tensor: "k", measure: "relative", step: 7 });
    expect(asked.map(({ step }) => step).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it("walks the cells and reads them aloud", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await settled();
    const figure = root.querySelector(".hm")!;
    for (let layer = 0; layer < 4; layer += 1) await press(figure, "ArrowRight");
    await press(figure, "ArrowDown");
    expect(kernel.client.live.value).toMatch(/^Layer 4, KV head 1: K drift 0\.\d{3}, rank \d+ of 89, 5\.0× floor$/);
    await press(figure, "ArrowDown");
    expect(kernel.client.live.value).toBe("Layer 4, KV head 2: K drift has no value (no row was read)");
    await press(figure, "Home");
    expect(root.querySelector(".read")?.textContent).toContain("Layer 0, KV head 2");
  });

  it("gives the values as a table", async () => {
    await show(fakeKernel());
    await settled();
    await click(button(root, "Table"));
    expect(root.querySelectorAll(".hmtable tbody tr")).toHaveLength(30);
    expect(root.querySelector(".hmtable")?.textContent).toContain("no value");
    expect(root.querySelector(".hmtable")?.textContent).toContain("▲");
  });

  it("shows the noise floor as text, as a mark and in the table, where it was measured", async () => {
    await show(fakeKernel());
    const told = () => root.querySelector(".drift")!.textContent!;
    expect(told()).toMatch(/Noise floor: median 0\.\d{3}, largest 0\.\d{3} \(the same prefill/);
    expect(told()).toContain("6 of 90 cells are within theirs");
    expect(told()).toContain("within its noise floor");
    await click(button(root, "Table"));
    expect(root.querySelectorAll(".hmtable tbody tr")[1]!.textContent!.split(" ·")).toHaveLength(4);
    await click(button(root, "V"));
    expect(told()).not.toContain("oise floor");
  });

  it("offers to capture attention, and sends it with the run", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await click(button(root, "Attention"));
    expect(root.textContent).toContain("Attention was not captured");
    await click(button(root, "Capture attention and run again"));
    expect(kernel.asked("splice.run")).toEqual([{ settings: { ...SETTINGS, attention: true } }]);
  });

  it("follows K at once, and refuses 1 with the formula", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await slide("8");
    expect(root.querySelector(".klab")?.textContent).toContain("K = 8, 2,048 tokens");
    expect(root.textContent).toContain("the settings have changed since");
    await slide("1");
    expect(root.textContent).toContain("K must exceed 1");
    expect(root.querySelector(".curve canvas")).toBeNull();
    await click(button(root, "Run splice"));
    expect(kernel.asked("splice.run")).toHaveLength(0);
  });

  it("runs what is set: curve takes the budget from K", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await slide("6");
    const curve = [...root.querySelectorAll<HTMLInputElement>('input[type="radio"]')][1]!;
    await click(curve);
    await click(button(root, "Run splice"));
    expect(kernel.asked("splice.run")).toEqual([{ settings: { ...SETTINGS, k: 6, budget: null } }]);
  });

  it("runs a block of typical conversations by its profile, or under a contract", async () => {
    const kernel = fakeKernel();
    await show(kernel);
    await choose(select("Compiled behind"), "typical");
    expect(root.textContent).toContain("431 tokens, not compiled");
    await choose(select("Repair"), "profile");
    await click(button(root, "Run splice"));
    await choose(select("Contract"), "bounded");
    expect(root.querySelector('[aria-label="Budget"]')).toBeNull();
    await type(root.querySelector<HTMLInputElement>('input[step="0.01"]')!, "0.05", true);
    await click(button(root, "Run splice"));
    const set = { ...SETTINGS, context: "typical", repair: "profile" };
    expect(kernel.asked("splice.run")).toEqual([
      { settings: set },
      { settings: { ...set, contract: "bounded", epsilon: 0.05 } },
    ]);
  });

  it("shows what it led to, and the profile of the block, also where it was declined", async () => {
    const profile = { n: 3, spliced: "M1 10v-5h1V10", recomputed: "M0 10v-10h1V10", words: "largest 0.5 at token 0" };
    const run = { ...spliceRun(), profile };
    await show(fakeKernel({ splice: { ...splicePart(), run } }));
    for (const line of run.led) expect(root.textContent).toContain(line);
    const figure = root.querySelector("svg.profile")!;
    expect(figure.getAttribute("aria-label")).toBe(profile.words);
    expect([...figure.querySelectorAll("path")].map((path) => path.getAttribute("d"))).toEqual([profile.spliced, profile.recomputed]);
    const declined = { code: "no_profile", reason: "no profile", instead: "full prefill" };
    await show(fakeKernel({ splice: { ...splicePart(), run: { ...run, declined, measured: null } } }));
    expect(root.textContent).toContain(run.led[0]);
  });

  it("says that nothing was spliced yet", async () => {
    await show(fakeKernel({ splice: { ...splicePart(), run: null, last: [] } }));
    expect(root.textContent).toContain("Nothing spliced yet");
  });

  it("says why a splice was declined and what it cost", async () => {
    const run = { ...spliceRun(), declined: M_ROPE, measured: null, ttft_ms: 1940 };
    await show(fakeKernel({ splice: { ...splicePart(), run } }));
    expect(root.textContent).toContain("splice declined: M-RoPE model");
    expect(root.textContent?.replace(/\u00a0/g, " ")).toContain("431 tokens, 1.94 s.");
    expect(root.querySelector(".hm")).toBeNull();
  });

  it("has no curve and no Run where a model cannot splice", async () => {
    const kernel = fakeKernel({ splice: { ...splicePart(), unavailable: M_ROPE } });
    await show(kernel);
    expect(root.textContent).toContain("No curve for this model");
    await click(button(root, "Run splice"));
    expect(kernel.asked("splice.run")).toHaveLength(0);
  });

  it("offers to measure where the switch was off", async () => {
    const run = { ...spliceRun(), measured: null, settings: { ...SETTINGS, measure: false } };
    const kernel = fakeKernel({ splice: { ...splicePart(), run } });
    await show(kernel);
    expect(root.querySelectorAll(".card")[0]?.textContent).toContain("not measured");
    expect(kernel.asked("splice.frame")).toHaveLength(0);
    await click(button(root, "Measure and run again"));
    expect(kernel.asked("splice.run")).toEqual([{ settings: { ...SETTINGS, measure: true } }]);
  });

  it("keeps 200 steps out of the document", async () => {
    await show(fakeKernel({ splice: splicePart({ layers: 48, heads: 40, steps: 200 }) }));
    expect(root.querySelectorAll(".sub").length).toBeLessThan(40);
    expect(root.textContent).toContain("step 200 of 200");
  });
});

describe("film", () => {
  const query = { run: "trial-1", tensor: "k", measure: "relative" } as const;
  it("asks from the step that is shown on, then backwards", () => {
    expect(fetchOrder(2, 5)).toEqual([2, 3, 4, 1, 0]);
    expect(fetchOrder(0, 0)).toEqual([]);
  });
  it("drops frames of a query that is no longer shown", async () => {
    const kernel = fakeKernel();
    kernel.hold("splice.frame");
    await settled();
    const film = openFilm(kernel.client);
    film.show(query, 0, 2);
    film.show({ ...query, tensor: "v" }, 0, 2);
    expect(kernel.asked("splice.frame").map(({ tensor, step }) => `${String(tensor)}${String(step)}`)).toEqual(["k0", "k1", "v0", "v1"]);
    kernel.release("splice.frame", 0);
    await settled();
    expect(film.frame(0)).toBeUndefined();
    expect(film.arrived.value).toBe(0);
    kernel.release("splice.frame", 1);
    await settled();
    expect(film.frame(0)?.reply.rows).toBe(30);
    expect(film.arrived.value).toBe(1);
  });
  it("has few requests under way at once", async () => {
    const kernel = fakeKernel({ splice: splicePart({ steps: 50 }) });
    kernel.hold("splice.frame");
    await settled();
    const film = openFilm(kernel.client);
    film.show(query, 0, 50);
    expect(kernel.asked("splice.frame")).toHaveLength(3);
    kernel.release("splice.frame");
    await settled();
    expect(kernel.asked("splice.frame")).toHaveLength(4);
    film.close();
  });
  it("copies values out of a buffer of any alignment, and refuses another length", () => {
    const reply = { rows: 1, cols: 2 } as FrameReply;
    const bytes = new Uint8Array(9);
    bytes.set(new Uint8Array(Float32Array.from([0.5, Number.NaN]).buffer), 1);
    const values = frameValues(reply, new DataView(bytes.buffer, 1, 8));
    expect(values[0]).toBe(0.5);
    expect(values[1]).toBeNaN();
    expect(() => frameValues(reply, new DataView(bytes.buffer, 1, 4))).toThrow("came with 4 bytes");
    expect(() => frameValues(reply, undefined)).toThrow("came with 0 bytes");
  });
});

describe("player", () => {
  it("plays from the start, never faster than twenty a second, and waits for frames", () => {
    vi.useFakeTimers();
    const step = signal(99);
    let known = 3;
    const player = openPlayer(step, () => 100, (at) => at < known);
    player.play();
    expect(step.value).toBe(0);
    vi.advanceTimersByTime(FRAME_MS - 1);
    expect(step.value).toBe(0);
    vi.advanceTimersByTime(20 * FRAME_MS);
    expect(step.value).toBe(2);
    known = 100;
    vi.advanceTimersByTime(1000);
    expect(step.value).toBeLessThanOrEqual(22);
    vi.advanceTimersByTime(10_000);
    expect(step.value).toBe(99);
    expect(player.playing.value).toBe(false);
    vi.useRealTimers();
  });
});

describe("words of the splice", () => {
  it("read a cell with its rank and its place in the range", () => {
    const cell = { layer: 17, head: 2 };
    expect(cellText(cell, { value: 0.0634, rank: 31, of: 89, beyond: null, floor: null }, "KV head", "k")).toBe(
      "Layer 17, KV head 2: K drift 0.063, rank 31 of 89",
    );
    const noisy = { value: -0.06, rank: 3, of: 89, beyond: null };
    expect(cellText(cell, { ...noisy, floor: 0.02 }, "KV head", "k")).toMatch(/rank 3 of 89, 3\.0× floor$/);
    expect(cellText(cell, { ...noisy, floor: 0.06 }, "KV head", "k")).toMatch(/, within its noise floor$/);
    expect(cellText(cell, { value: 0.34, rank: 1, of: 89, beyond: "above", floor: null }, "query head", "attention")).toBe(
      "Layer 17, query head 2: attention drift 0.340, rank 1 of 89, above the range",
    );
  });
  it("write drifts of any size", () => {
    expect([0, 0.063, -0.012, 4.5, 31.26, 1234, 0.00006].map(driftNumber)).toEqual([
      "0.000", "0.063", "−0.012", "4.50", "31.3", "1234", "6.0e−5",
    ]);
  });
  it("range from zero, or the same on both sides of it", () => {
    const frame = { step_range: [-0.1, 0.3], run_range: [-0.6, 0.2] } as unknown as FrameReply;
    expect(figureRange(frame, "relative", "fixed")).toEqual([0, 0.2]);
    expect(figureRange(frame, "signed", "fixed")).toEqual([-0.6, 0.6]);
    expect(figureRange(frame, "signed", "step")).toEqual([-0.3, 0.3]);
    expect(figureRange({ ...frame, cached_range: [0, 0.15] }, "relative", "fixed")).toEqual([0, 0.15]);
  });
  it("compare with the floor and with prefill", () => {
    expect(floorWords(0.0082, 0.0052)).toBe("1.6× floor");
    expect(floorWords(0, 0)).toBe("at the floor");
    expect(speedWords(284, 1078)).toBe("3.80× faster");
    expect(speedWords(1200, 1000)).toBe("1.20× slower");
    expect(speedWords(0, 1000)).toBe("–");
  });
  it("give each group of next tokens its own scale", () => {
    const { next } = spliceRun().measured!;
    expect(nextGroups(next).map((group) => [group.rows.length, group.scale])).toEqual([[4, 1], [5, 0.015]]);
    expect([0.51, 0.3, 0.011, 0.0004].map(scaleFor)).toEqual([1, 0.3, 0.015, 0.0004]);
    expect(likeliest(next, "spliced")?.text).toBe('{"');
  });
});

describe("budget", () => {
  const calibrated = splicePart().calibrated!.system!;
  it("takes the larger of the measured depths around", () => {
    expect([0, 300, 512, 648, 1024].map((depth) => calibratedBudget(calibrated, depth))).toEqual([0.1, 0.2, 0.2, 0.25, 0.25]);
    expect(calibratedBudget(calibrated, 1500)).toBeNull();
    expect(calibratedBudget(calibrated, 4000)).toBeNull();
  });
  it("falls back to the profile, and says why there is none", () => {
    expect(budgetChoice(null, "leading", 648, 0.25)).toEqual({ budget: 0.25, word: "profile", why: null });
    expect(budgetChoice(null, "leading", 648, null).why).toBe("not calibrated");
    expect(budgetChoice(calibrated, "trailing", 648, 0.25)).toEqual({
      budget: 0.25,
      word: "profile",
      why: "calibrated for leading, not for trailing",
    });
    expect(budgetChoice(calibrated, "leading", 4000, 0.25)).toMatchObject({ budget: 0.25, word: "profile" });
    expect(budgetChoice(calibrated, "leading", 4000, 0.25).why).toBe("no measured budget stays under 0.02 nats at this depth");
  });
});
