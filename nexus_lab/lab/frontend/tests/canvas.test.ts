import { describe, expect, it } from "vitest";
import { colorAt, cssColorAt, VIK, VIRIDIS } from "../src/canvas/colormap";
import { curveAt, curveProblem, curveTokens, drawCurve } from "../src/canvas/curve";
import { cellAt, drawHeatmap, layoutHeatmap, readCell, walkCells, type HeatmapData } from "../src/canvas/heatmap";
import { drawStrip, gatherColumns, isDense, mainState, runsOf, stripIndex, stripX, type StripData } from "../src/canvas/strip";
import type { CanvasTheme } from "../src/canvas/theme";
import { readTheme } from "../src/canvas/theme";
import { layoutCards, scrollToCard, visibleCards } from "../src/canvas/timeline";
import { walk } from "../src/canvas/walk";
import { recordingContext } from "./canvas_context";

HTMLCanvasElement.prototype.getContext = () => null;

const THEME: CanvasTheme = readTheme(document.body);

describe("colour maps", () => {
  it("begin and end with their published stops", () => {
    expect(colorAt(VIRIDIS, 0)).toEqual([0x44, 0x01, 0x54]);
    expect(colorAt(VIRIDIS, 1)).toEqual([0xfd, 0xe7, 0x25]);
    expect(colorAt(VIK, 0)).toEqual([0x00, 0x12, 0x61]);
    expect(colorAt(VIK, 1)).toEqual([0x59, 0x00, 0x08]);
  });
  it("mix neighbouring stops in the middle", () => {
    expect(colorAt(VIRIDIS, 0.5)).toEqual([0x23, 0x90, 0x8c]);
    const [red, , blue] = colorAt(VIK, 0.5) ?? [];
    expect(Math.abs((red ?? 0) - (blue ?? 255))).toBeLessThan(12);
  });
  it("clamp, and have no colour for no value", () => {
    expect(colorAt(VIRIDIS, 7)).toEqual(colorAt(VIRIDIS, 1));
    expect(colorAt(VIRIDIS, -7)).toEqual(colorAt(VIRIDIS, 0));
    expect(colorAt(VIRIDIS, Number.NaN)).toBeNull();
    expect(cssColorAt(VIRIDIS, Number.NaN)).toBeNull();
    expect(cssColorAt(VIRIDIS, 1)).toBe("rgb(253,231,37)");
  });
});

describe("repair curve", () => {
  const constants = { k: 4, m: 256, rBase: 0.05 };
  it("stays at the base up to M, rises in a line and ends at 1", () => {
    expect(curveAt(0, constants)).toBe(0.05);
    expect(curveAt(256, constants)).toBe(0.05);
    expect(curveAt(648, constants)).toBeCloseTo(0.05 + (392 / 768) * 0.95, 12);
    expect(curveAt(1024, constants)).toBe(1);
    expect(curveAt(9000, constants)).toBe(1);
    expect(curveTokens(431, curveAt(648, constants))).toBe(231);
  });
  it("counts no token for float noise", () => {
    expect(curveTokens(100, 0.07)).toBe(7);
    expect(curveTokens(10, 1)).toBe(10);
  });
  it.each([1, 0.5, 0, -2, Number.NaN, Infinity])("refuses K = %s with the formula", (k) => {
    const problem = curveProblem({ ...constants, k });
    expect(problem).toContain("K must exceed 1");
    expect(problem).toContain("(n_past − M) / (M (K − 1))");
    expect(curveAt(648, { ...constants, k })).toBeNaN();
  });
  it("draws M, the depth and the calibrated budget, and nothing where it is undefined", () => {
    const data = { constants, nPast: 648, tokens: 431, budget: { fraction: 0.25, word: "calibrated" } };
    const drawn = recordingContext();
    drawCurve(drawn.ctx, data, THEME, { width: 314, height: 150 });
    expect(drawn.texts()).toContain("M = 256");
    expect(drawn.texts().join()).toContain("n_past 648: R = 53.5");
    expect(drawn.texts().join()).toContain("231 tokens");
    expect(drawn.texts().join()).toContain("calibrated 25");
    const refused = recordingContext();
    drawCurve(refused.ctx, { ...data, constants: { ...constants, k: 1 } }, THEME, { width: 314, height: 150 });
    expect(refused.marks).toHaveLength(0);
  });
});

describe("heatmap", () => {
  const layout = layoutHeatmap(800, 30, 3);
  it("finds the cell under a point, and none outside", () => {
    expect(cellAt(layout, layout.left + 17.5 * layout.wide, 3 + 2.5 * layout.tall)).toEqual({ layer: 17, head: 2 });
    expect(cellAt(layout, layout.left - 1, 20)).toBeNull();
    expect(cellAt(layout, layout.left + 30 * layout.wide, 20)).toBeNull();
    expect(cellAt(layout, layout.left + 5, 3 + 3 * layout.tall)).toBeNull();
  });
  it("fits 48 layers of 40 heads into its width", () => {
    const large = layoutHeatmap(780, 48, 40);
    expect(large.left + 48 * large.wide).toBeLessThanOrEqual(780);
    expect(large.wide).toBeGreaterThanOrEqual(10);
  });
  it("walks by keys and stops at the edges", () => {
    const at = { layer: 17, head: 2 };
    expect(walkCells(at, "ArrowRight", 30, 3)).toEqual({ layer: 18, head: 2 });
    expect(walkCells(at, "ArrowUp", 30, 3)).toEqual({ layer: 17, head: 1 });
    expect(walkCells(at, "ArrowDown", 30, 3)).toEqual(at);
    expect(walkCells(at, "Home", 30, 3)).toEqual({ layer: 0, head: 2 });
    expect(walkCells(at, "End", 30, 3)).toEqual({ layer: 29, head: 2 });
    expect(walkCells({ layer: 0, head: 0 }, "ArrowLeft", 30, 3)).toEqual({ layer: 0, head: 0 });
    expect(walkCells(at, "a", 30, 3)).toBeNull();
  });

  const values = Float32Array.from([0.1, -0.4, Number.NaN, 0.3, 0.2, 0.3]);
  const data: HeatmapData = { layers: 2, heads: 3, values, floor: null, range: [-0.35, 0.25], map: VIRIDIS, focus: null };
  it("ranks by magnitude among the cells that have a value", () => {
    expect(readCell(data, { layer: 0, head: 1 })).toMatchObject({ rank: 1, of: 5, beyond: "below" });
    expect(readCell(data, { layer: 1, head: 0 })).toMatchObject({ rank: 2, of: 5, beyond: "above" });
    expect(readCell(data, { layer: 1, head: 2 }).rank).toBe(2);
    expect(readCell(data, { layer: 0, head: 0 })).toMatchObject({ rank: 5, beyond: null });
    expect(readCell(data, { layer: 0, head: 2 })).toMatchObject({ rank: null, of: 5 });
  });
  it("fills cells with a value and crosses those without", () => {
    const drawn = recordingContext();
    drawHeatmap(drawn.ctx, data, THEME, { width: 300, height: 200 });
    expect(drawn.of("fillRect")).toHaveLength(5);
    expect(drawn.of("strokeRect")).toHaveLength(1);
    expect(drawn.of("fill")).toHaveLength(3);
    expect(drawn.of("fillRect")[0]?.fill).toMatch(/^rgb\(/);
  });
  it("marks the cells within their noise floor, by magnitude", () => {
    const drawn = recordingContext();
    const floor = Float32Array.from([0.1, 0.5, 1, 0.2, 0.1, 0.1]);
    drawHeatmap(drawn.ctx, { ...data, floor }, THEME, { width: 300, height: 200 });
    expect(drawn.of("fillRect").filter(({ fill }) => fill === "#fff")).toHaveLength(2);
    expect(readCell({ ...data, floor }, { layer: 0, head: 1 }).floor).toBe(0.5);
  });
  it("rings the focus cell in the accent", () => {
    const drawn = recordingContext();
    drawHeatmap(drawn.ctx, { ...data, focus: { layer: 99, head: 99 } }, THEME, { width: 300, height: 200 });
    expect(drawn.of("strokeRect").at(-1)?.stroke).toBe(THEME.accent);
  });
});

describe("token strip", () => {
  it("gathers columns with the share of each state and the reach of positions", () => {
    const states = Uint8Array.from([0, 0, 1, 1, 1, 3, 3, 3]);
    const positions = Int32Array.from([0, 1, 2, 3, 9, -1, -1, -1]);
    const columns = gatherColumns(states, positions, 16, 4);
    expect([...columns.shares]).toEqual([2, 2, 0, 0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    expect([...columns.low]).toEqual([0, 9, -1, -1]);
    expect([...columns.high]).toEqual([3, 9, -1, -1]);
    expect([0, 1, 2].map((column) => mainState(columns, column))).toEqual([0, 3, -1]);
  });
  it("loses no token of a long sequence", () => {
    const states = Uint8Array.from({ length: 200_000 }, (_, index) => index % 4);
    const positions = Int32Array.from(states, (state, index) => (state === 3 ? -1 : index));
    const columns = gatherColumns(states, positions, states.length, 752);
    expect(columns.shares.reduce((sum, share) => sum + share, 0)).toBe(200_000);
    expect(isDense(200_000, 800)).toBe(true);
    expect(isDense(1980, 800)).toBe(false);
  });
  it("joins neighbours of one state", () => {
    expect(runsOf(Uint8Array.from([1, 1, 2, 1]))).toEqual([
      { state: 1, start: 0, stop: 2 },
      { state: 2, start: 2, stop: 3 },
      { state: 1, start: 3, stop: 4 },
    ]);
  });
  it("goes from index to pixel and back", () => {
    for (const index of [0, 1, 777, 1979]) expect(stripIndex(stripX(index, 1980, 1100), 1980, 1100)).toBe(index);
    expect(stripIndex(-50, 1980, 1100)).toBe(0);
    expect(stripIndex(5000, 1980, 1100)).toBe(1979);
  });
  it("draws the position of what is held, in one line for each straight part, and none for what was dropped", () => {
    const data: StripData = {
      states: Uint8Array.from([0, 0, 3, 3, 0, 0]),
      positions: Int32Array.from([0, 1, -1, -1, 2, 7]),
      extent: 6,
      starts: [0, 4],
    };
    const drawn = recordingContext();
    drawStrip(drawn.ctx, data, THEME, { width: 300, height: 96 });
    const held = drawn.of("stroke").filter((mark) => mark.stroke === THEME.ops.append);
    expect(held).toHaveLength(3);
  });
  it("says what is still to come while looking back", () => {
    const data: StripData = {
      states: new Uint8Array(10),
      positions: new Int32Array(10),
      extent: 1000,
      starts: [],
    };
    const drawn = recordingContext();
    drawStrip(drawn.ctx, data, THEME, { width: 800, height: 96 });
    expect(drawn.texts()).toContain("not yet run at this step");
  });
});

describe("walking by keys", () => {
  it("stays within the row", () => {
    const keys = ["ArrowRight", "ArrowLeft", "Home", "End", "x", "PageUp"];
    expect(keys.map((key) => walk(key, 7, 8))).toEqual([7, 6, 0, 7, null, null]);
    expect(keys.map((key) => walk(key, 500, 2000, 8, 200))).toEqual([508, 492, 0, 1999, null, 300]);
  });
});

describe("row of cards", () => {
  it("fills the place while all fit, and scrolls beyond", () => {
    expect(layoutCards(10, 1130, 107)).toEqual({ step: 113, total: 1130 });
    expect(layoutCards(1000, 1130, 107)).toEqual({ step: 107, total: 107_000 });
    expect(layoutCards(0, 1130, 107).total).toBe(0);
  });
  it("keeps a few cards of a thousand", () => {
    const row = layoutCards(1000, 1130, 107);
    expect(visibleCards(1000, row, 0, 1130)).toEqual({ first: 0, stop: 17 });
    const { first, stop } = visibleCards(1000, row, 53_500, 1130);
    expect(first).toBe(494);
    expect(stop - first).toBeLessThan(30);
    expect(visibleCards(1000, row, row.total, 1130).stop).toBe(1000);
  });
  it("scrolls no further than needed", () => {
    const row = layoutCards(100, 1000, 100);
    expect(scrollToCard(5, row, 0, 1000)).toBe(0);
    expect(scrollToCard(20, row, 0, 1000)).toBe(1200);
    expect(scrollToCard(3, row, 2000, 1000)).toBe(200);
    expect(scrollToCard(99, row, 0, 1000)).toBe(9000);
  });
});
