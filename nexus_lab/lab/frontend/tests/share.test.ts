import { describe, expect, it } from "vitest";
import { binMargins, histogramLayout, topOf } from "../src/canvas/histogram";
import { axisEnd, roundTau, splitAt, tauAfterKey } from "../src/panels/routing/share";
import { margins, TAU } from "./fixtures";

describe("what tau would do", () => {
  it("splits at tau: under it escalates, at it resolves", () => {
    const rows = [
      { margin: 0.01, mark: "wrong" as const, ms: 40 },
      { margin: 0.0199, mark: null, ms: 50 },
      { margin: 0.02, mark: "right" as const, ms: 4 },
      { margin: 0.5, mark: "right" as const, ms: 2 },
    ];
    const { escalates, resolves, share } = splitAt(rows, 0.02);
    expect(share).toBe(0.5);
    expect(escalates).toEqual({ decisions: 2, marked: 1, right: 0, meanMs: 45 });
    expect(resolves).toEqual({ decisions: 2, marked: 2, right: 2, meanMs: 3 });
  });

  it("knows no share without decisions", () => {
    expect(splitAt([], 0.1)).toEqual({
      share: null,
      escalates: { decisions: 0, marked: 0, right: 0, meanMs: null },
      resolves: { decisions: 0, marked: 0, right: 0, meanMs: null },
    });
  });

  it("agrees with counting, and never falls as tau rises", () => {
    const rows = margins();
    expect(splitAt(rows, TAU).share).toBe(0.2);
    let last = 0;
    for (let tau = 0; tau <= 0.15; tau += 0.003) {
      const { escalates, resolves } = splitAt(rows, tau);
      expect(escalates.decisions + resolves.decisions).toBe(rows.length);
      expect(escalates.decisions).toBeGreaterThanOrEqual(last);
      last = escalates.decisions;
    }
  });

  it("moves by 0.0002 and 0.002, within the axis", () => {
    expect(tauAfterKey(0.0136, "ArrowRight", 0.12)).toBe(0.0138);
    expect(tauAfterKey(0.0136, "ArrowLeft", 0.12)).toBe(0.0134);
    expect(tauAfterKey(0.0136, "PageUp", 0.12)).toBe(0.0156);
    expect(tauAfterKey(0.0136, "PageDown", 0.12)).toBe(0.0116);
    expect(tauAfterKey(0.0001, "ArrowLeft", 0.12)).toBe(0);
    expect(tauAfterKey(0.1199, "PageUp", 0.12)).toBe(0.12);
    expect(tauAfterKey(0.0136, "Home", 0.12)).toBe(0);
    expect(tauAfterKey(0.0136, "End", 0.12)).toBe(0.12);
    expect(tauAfterKey(0.0136, "x", 0.12)).toBeNull();
  });

  it("keeps tau on the grid over many steps", () => {
    let tau = 0;
    for (let i = 0; i < 500; i += 1) tau = tauAfterKey(tau, "ArrowRight", 0.12)!;
    expect(tau).toBe(0.1);
    expect(roundTau(-1, 0.12)).toBe(0);
  });

  it("gives the axis room for tau and for the margin that is looked at", () => {
    const rows = margins();
    expect(axisEnd(rows, TAU)).toBe(0.12);
    expect(axisEnd(rows, TAU, 0.2)).toBe(0.3);
    expect(axisEnd([], null)).toBeGreaterThan(0);
    expect(axisEnd([{ margin: 3, mark: null, ms: 1 }], 0.1)).toBe(3);
  });
});

describe("histogram", () => {
  it("loses no decision", () => {
    const rows = margins();
    const { counts, beyond } = binMargins(rows, 0.12);
    expect(counts.reduce((a, b) => a + b) + beyond).toBe(rows.length);
    expect(beyond).toBe(rows.filter(({ margin }) => margin >= 0.12).length);
  });

  it("gives the margin back for its place", () => {
    const layout = histogramLayout(444, 0.12);
    for (const margin of [0, 0.0136, 0.1, 0.12]) expect(layout.margin(layout.x(margin))).toBeCloseTo(margin, 9);
    expect(layout.x(7)).toBe(layout.x(0.12));
  });

  it("ends its scale at a round number over the highest bin", () => {
    for (const most of [1, 2, 3, 9, 10, 11, 27, 31, 95, 100, 101, 2999]) {
      const top = topOf([most, 0]);
      expect(top).toBeGreaterThanOrEqual(most);
      expect(Number.isInteger(top / 2)).toBe(true);
      if (most >= 4) expect(top).toBeLessThanOrEqual(2.5 * most);
    }
  });
});
