/** What the drift figure says in words and numbers. */
import { VIK, VIRIDIS } from "../../canvas/colormap";
import { isNoise, type CellReading, type HeatmapCell, type HeatmapData } from "../../canvas/heatmap";
import { fixed, int, minus, NONE } from "../../format";
import type { FrameReply, FrameRequest } from "../../protocol";
import { floorWords } from "./cards";
import type { Frame } from "./film";

export type Tensor = FrameRequest["tensor"];
export type Measure = FrameRequest["measure"];
export type RangeKind = "fixed" | "step";

export const TENSOR_WORDS: Record<Tensor, string> = { k: "K drift", v: "V drift", attention: "attention drift" };

/** A drift as it is read: three decimals, fewer for large ones, two digits for tiny ones. */
export function driftNumber(value: number): string {
  if (Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && size < 0.0005) return minus(value.toExponential(1));
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** "Layer 17, KV head 2: K drift 0.063, rank 31 of 89", in parts so that the numbers can be set in bold. */
export function cellParts(cell: HeatmapCell, reading: CellReading, colLabel: FrameReply["col_label"], tensor: Tensor) {
  const where = `Layer ${cell.layer}, ${colLabel} ${cell.head}`;
  const what = TENSOR_WORDS[tensor];
  if (reading.rank === null) return { where, what, value: null, rest: " has no value (no row was read)" };
  let beyond = reading.beyond === null ? "" : `, ${reading.beyond} the range`;
  const size = Math.abs(reading.value);
  if (reading.floor !== null) beyond += size <= reading.floor ? ", within its noise floor" : `, ${floorWords(size, reading.floor)}`;
  return { where, what, value: driftNumber(reading.value), rest: `, rank ${int(reading.rank)} of ${int(reading.of)}${beyond}` };
}

export function cellText(cell: HeatmapCell, reading: CellReading, colLabel: FrameReply["col_label"], tensor: Tensor): string {
  const { where, what, value, rest } = cellParts(cell, reading, colLabel, tensor);
  return `${where}: ${what}${value === null ? "" : ` ${value}`}${rest}`;
}

/**
 * Range of the figure: from 0 for magnitudes, the same on both sides of 0 for signed values. The fixed one is that of
 * the steps in the cache; those before it may lie above and are marked so.
 */
export function figureRange(frame: FrameReply, measure: Measure, kind: RangeKind): [number, number] {
  const [low, high] = kind === "fixed" ? frame.cached_range ?? frame.run_range : frame.step_range;
  const finite = (value: number) => (Number.isFinite(value) ? value : 0);
  if (measure !== "signed") return [0, Math.max(finite(high), 1e-12)];
  const reach = Math.max(Math.abs(finite(low)), Math.abs(finite(high)), 1e-12);
  return [-reach, reach];
}

export function figureData(frame: Frame, measure: Measure, kind: RangeKind, focus: HeatmapCell | null): HeatmapData {
  return {
    layers: frame.reply.rows,
    heads: frame.reply.cols,
    values: frame.values,
    floor: frame.floor,
    range: figureRange(frame.reply, measure, kind),
    map: measure === "signed" ? VIK : VIRIDIS,
    focus,
  };
}

/** What two exact computations differ by, over all cells, and how many cells differ by no more; null where unmeasured. */
export function noiseWords(frame: Frame): string | null {
  if (!frame.floor) return null;
  const floors = [...frame.floor].sort((a, b) => a - b);
  const within = floors.reduce((sum, _, index) => sum + Number(isNoise(frame, index)), 0);
  const [middle, most] = [floors[floors.length >> 1]!, floors[floors.length - 1]!].map(driftNumber);
  return `Noise floor: median ${middle}, largest ${most} (the same prefill, what stands before in other cells); ${int(within)} of ${int(floors.length)} cells are within theirs.`;
}

/** Quantity of the colour bar. */
export function measureWords(tensor: Tensor, measure: Measure): string {
  const what = tensor === "attention" ? "attention of the next token" : "rows of the block";
  if (measure === "relative") return `L2 distance, relative to prefill; ${what}`;
  if (measure === "absolute") return `L2 distance; ${what}`;
  return `mean signed difference; ${what}`;
}
