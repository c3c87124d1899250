/**
 * Heatmap of one value per layer and head: layers from left to right, heads from top to bottom. Drawing, the cell
 * under a point, the walk by keys, and what the read-out says.
 *
 * Marks: a cell without a value is left empty with an edge and a cross; one beyond the range has the end colour and
 * a triangle in its upper right corner (above) or lower right corner (below); one within its noise floor has a point.
 */

import { cssColorAt, type ColorMap } from "./colormap";
import { drawLine, write } from "./pen";
import type { Size } from "./size";
import type { CanvasTheme } from "./theme";
import { walk } from "./walk";

export interface HeatmapData {
  layers: number;
  heads: number;
  /** Row-major by layer: `values[layer * heads + head]`; NaN for "no value". */
  values: Float32Array;
  /** Noise floor of each cell, where it was measured. */
  floor: Float32Array | null;
  range: readonly [number, number];
  map: ColorMap;
  focus: HeatmapCell | null;
}

export interface HeatmapCell {
  layer: number;
  head: number;
}

export interface HeatmapLayout {
  left: number;
  /** Size of a cell with the gap behind it. */
  wide: number;
  tall: number;
  layers: number;
  heads: number;
  height: number;
}

/** Room for "head 7", and for "head 39". */
const LABELS = { few: 46, many: 56 };
const AXIS = 22;
const MOST_CELL_WIDTH = 36;
const FOCUS_MARGIN = 3;

function heightOfCell(heads: number): number {
  if (heads <= 4) return 30;
  if (heads <= 12) return 20;
  return 12;
}

/** Where the cells lie in a figure of this width; the height follows from the heads. */
export function layoutHeatmap(width: number, layers: number, heads: number): HeatmapLayout {
  const left = heads > 10 ? LABELS.many : LABELS.few;
  const room = Math.max(layers * 3, width - left - FOCUS_MARGIN);
  const wide = Math.max(3, Math.min(MOST_CELL_WIDTH, Math.floor(room / Math.max(1, layers))));
  const tall = heightOfCell(heads);
  return { left, wide, tall, layers, heads, height: FOCUS_MARGIN + tall * heads + AXIS };
}

/** Cell under a point of the figure, in CSS pixels; null outside of the cells. */
export function cellAt(layout: HeatmapLayout, x: number, y: number): HeatmapCell | null {
  const layer = Math.floor((x - layout.left) / layout.wide);
  const head = Math.floor((y - FOCUS_MARGIN) / layout.tall);
  const inside = layer >= 0 && layer < layout.layers && head >= 0 && head < layout.heads;
  return inside ? { layer, head } : null;
}

/** Cell that a key leads to; null for a key that does not move. */
export function walkCells(cell: HeatmapCell, key: string, layers: number, heads: number): HeatmapCell | null {
  const down = { ArrowDown: 1, ArrowUp: -1 }[key];
  if (down) return clampCell({ layer: cell.layer, head: cell.head + down }, layers, heads);
  const layer = walk(key, cell.layer, layers);
  return layer === null ? null : { layer, head: cell.head };
}

export function clampCell(cell: HeatmapCell, layers: number, heads: number): HeatmapCell {
  return {
    layer: Math.max(0, Math.min(layers - 1, cell.layer)),
    head: Math.max(0, Math.min(heads - 1, cell.head)),
  };
}

export interface CellReading {
  value: number;
  /** Place among the values by magnitude, from 1; null for a cell without a value. */
  rank: number | null;
  /** Number of cells that have a value. */
  of: number;
  beyond: "above" | "below" | null;
  floor: number | null;
}

/** Whether the value at an index is no larger than what two exact computations differ by. */
export function isNoise({ values, floor }: Pick<HeatmapData, "values" | "floor">, index: number): boolean {
  return floor !== null && Math.abs(values[index]!) <= floor[index]!;
}

/** Value of a cell, its rank by magnitude, and whether it lies beyond the range. */
export function readCell(data: Omit<HeatmapData, "focus" | "map">, cell: HeatmapCell): CellReading {
  const index = cell.layer * data.heads + cell.head;
  const value = data.values[index] ?? Number.NaN;
  const floor = data.floor?.[index] ?? null;
  const size = Math.abs(value);
  let of = 0;
  let larger = 0;
  for (const other of data.values) {
    if (Number.isNaN(other)) continue;
    of += 1;
    if (Math.abs(other) > size) larger += 1;
  }
  if (Number.isNaN(value)) return { value, rank: null, of, beyond: null, floor };
  const beyond = value > data.range[1] ? "above" : value < data.range[0] ? "below" : null;
  return { value, rank: larger + 1, of, beyond, floor };
}

function drawCross(ctx: CanvasRenderingContext2D, x: number, y: number, layout: HeatmapLayout, theme: CanvasTheme): void {
  const { wide, tall } = layout;
  ctx.lineWidth = 1;
  ctx.strokeStyle = theme.edge;
  ctx.strokeRect(x + 0.5, y + 0.5, Math.max(1, wide - 2), Math.max(1, tall - 2));
  const arm = Math.min(4, wide / 3, tall / 3);
  const [middleX, middleY] = [x + wide / 2 - 0.5, y + tall / 2 - 0.5];
  for (const slope of [1, -1]) {
    drawLine(ctx, theme.text, 1, [[middleX - arm, middleY - slope * arm], [middleX + arm, middleY + slope * arm]]);
  }
}

function drawCorner(ctx: CanvasRenderingContext2D, x: number, y: number, layout: HeatmapLayout, ink: string, above: boolean): void {
  const side = Math.min(8, layout.wide - 2, layout.tall - 2);
  const right = x + layout.wide - 2;
  const edge = above ? y + 1 : y + layout.tall - 2;
  ctx.fillStyle = ink;
  ctx.beginPath();
  ctx.moveTo(right - side, edge);
  ctx.lineTo(right, edge);
  ctx.lineTo(right, above ? edge + side : edge - side);
  ctx.fill();
}

function drawPoint(ctx: CanvasRenderingContext2D, x: number, y: number, { wide, tall }: HeatmapLayout): void {
  for (const [ink, side] of [["#000", 4], ["#fff", 2]] as const) {
    ctx.fillStyle = ink;
    ctx.fillRect(x + (wide - 1 - side) / 2, y + (tall - 1 - side) / 2, side, side);
  }
}

function drawCells(ctx: CanvasRenderingContext2D, data: HeatmapData, theme: CanvasTheme, layout: HeatmapLayout): void {
  const { wide, tall, left } = layout;
  const [low, high] = data.range;
  const scale = high > low ? 1 / (high - low) : 0;
  const lowInk = data.map.name === "vik" ? data.map.endInk : "#ffffff";
  for (let layer = 0; layer < data.layers; layer += 1) {
    const x = left + layer * wide;
    for (let head = 0; head < data.heads; head += 1) {
      const y = FOCUS_MARGIN + head * tall;
      const index = layer * data.heads + head;
      const value = data.values[index] ?? Number.NaN;
      const color = cssColorAt(data.map, (value - low) * scale);
      if (color === null) {
        drawCross(ctx, x, y, layout, theme);
        continue;
      }
      ctx.fillStyle = color;
      ctx.fillRect(x, y, wide - 1, tall - 1);
      if (value > high) drawCorner(ctx, x, y, layout, data.map.endInk, true);
      else if (value < low) drawCorner(ctx, x, y, layout, lowInk, false);
      if (isNoise(data, index)) drawPoint(ctx, x, y, layout);
    }
  }
}

function drawLabels(ctx: CanvasRenderingContext2D, theme: CanvasTheme, layout: HeatmapLayout): void {
  const { wide, tall, left, heads, layers } = layout;
  const everyHead = tall >= 20 ? 1 : 5;
  const everyLayer = [1, 5, 10, 20, 50, 100].find((step) => step * wide >= 28 && step >= 5) ?? 100;
  for (let head = 0; head < heads; head += everyHead) {
    write(ctx, theme, `head ${head}`, left - 8, FOCUS_MARGIN + head * tall + tall / 2, "right");
  }
  const axis = FOCUS_MARGIN + tall * heads + 10;
  write(ctx, theme, "layer", left - 8, axis, "right");
  for (let layer = 0; layer < layers; layer += everyLayer) {
    write(ctx, theme, String(layer), left + layer * wide + wide / 2, axis, "center");
  }
}

function drawFocus(ctx: CanvasRenderingContext2D, cell: HeatmapCell, theme: CanvasTheme, layout: HeatmapLayout): void {
  const x = layout.left + cell.layer * layout.wide;
  const y = FOCUS_MARGIN + cell.head * layout.tall;
  ctx.lineWidth = 2;
  ctx.strokeStyle = theme.background;
  ctx.strokeRect(x + 0.5, y + 0.5, layout.wide - 2, layout.tall - 2);
  ctx.strokeStyle = theme.accent;
  ctx.strokeRect(x - 1.5, y - 1.5, layout.wide + 2, layout.tall + 2);
}

export function drawHeatmap(ctx: CanvasRenderingContext2D, data: HeatmapData, theme: CanvasTheme, size: Size): void {
  const layout = layoutHeatmap(size.width, data.layers, data.heads);
  drawCells(ctx, data, theme, layout);
  drawLabels(ctx, theme, layout);
  if (data.focus) drawFocus(ctx, clampCell(data.focus, data.layers, data.heads), theme, layout);
}
