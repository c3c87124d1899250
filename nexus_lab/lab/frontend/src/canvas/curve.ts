/** The repair curve R(n_past) of the paper: its values, when it is undefined, and its figure. */

import { int, percent } from "../format";
import { drawLine, write } from "./pen";
import type { Size } from "./size";
import type { CanvasTheme } from "./theme";

export interface CurveConstants {
  /** Multiple of `m` from which everything is recomputed. */
  k: number;
  /** Depth in tokens up to which only the base fraction is recomputed. */
  m: number;
  /** Fraction recomputed up to `m`, 0 to 1. */
  rBase: number;
}

export interface CurveData {
  constants: CurveConstants;
  nPast: number;
  /** Tokens of the block, for the count that the fraction stands for. */
  tokens: number | null;
  /** Fraction that is taken in place of the curve, and what it is called. */
  budget: { fraction: number; word: string } | null;
}

export const CURVE_FORMULA = "R(n_past) = r_base + (n_past − M) / (M (K − 1)) · (1 − r_base), at most 1";

/** Why K leaves the curve undefined; null when it does not. M and r_base are the kernel's, and checked there. */
export function curveProblem({ k }: Pick<CurveConstants, "k">): string | null {
  if (Number.isFinite(k) && k > 1) return null;
  return `K must exceed 1, or the curve is undefined: ${CURVE_FORMULA}.`;
}

/** Fraction of the block that is recomputed behind `nPast` tokens; NaN where the curve is undefined. */
export function curveAt(nPast: number, constants: CurveConstants): number {
  if (curveProblem(constants)) return Number.NaN;
  const { k, m, rBase } = constants;
  if (nPast <= m) return rBase;
  return Math.min(1, rBase + ((nPast - m) / (m * (k - 1))) * (1 - rBase));
}

/** Tokens that a fraction of a block stands for: the ceiling, from 0 to `tokens`, without float noise. */
export function curveTokens(tokens: number, fraction: number): number {
  return Math.min(tokens, Math.max(0, Math.ceil(Number((tokens * fraction).toFixed(9)))));
}

/** Deepest position on the axis: the curve's end with some air, never more than is needed. */
export function curveExtent({ constants, nPast }: CurveData): number {
  const wanted = Math.max(2048, constants.m * constants.k * 1.25, nPast * 1.1);
  return Math.ceil(wanted / 512) * 512;
}

const EDGE = { left: 34, right: 12, top: 22, bottom: 32 };

interface Scale {
  x: (n: number) => number;
  y: (fraction: number) => number;
  right: number;
}

function scaleOf(size: Size, extent: number): Scale {
  const width = size.width - EDGE.left - EDGE.right;
  const height = size.height - EDGE.top - EDGE.bottom;
  return {
    x: (n) => EDGE.left + (Math.min(n, extent) / extent) * width,
    y: (fraction) => EDGE.top + (1 - fraction) * height,
    right: size.width - EDGE.right,
  };
}

function drawAxes(ctx: CanvasRenderingContext2D, scale: Scale, extent: number, rBase: number, theme: CanvasTheme, size: Size): void {
  for (const fraction of [0, 0.5, 1]) {
    const y = Math.round(scale.y(fraction)) + 0.5;
    drawLine(ctx, theme.rule, 1, [[EDGE.left, y], [scale.right, y]]);
    write(ctx, theme, String(fraction * 100), EDGE.left - 5, y, "right");
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const align = part === 1 ? "right" : "center";
    write(ctx, theme, int(part * extent), scale.x(part * extent), size.height - 20, align);
  }
  const caption = `n_past, tokens; R, % of block; R_base = ${percent(rBase, 0)}`;
  write(ctx, theme, caption, EDGE.left, size.height - 6);
}

function drawBudget(
  ctx: CanvasRenderingContext2D,
  scale: Scale,
  { fraction, word }: NonNullable<CurveData["budget"]>,
  theme: CanvasTheme,
): void {
  const y = scale.y(fraction);
  drawLine(ctx, theme.ops.repair, 1.4, [[EDGE.left, y], [scale.right, y]], [5, 3]);
  write(ctx, theme, `${word} ${percent(fraction, 0)}`, scale.right, y - 8, "right");
}

function drawDepth(ctx: CanvasRenderingContext2D, scale: Scale, data: CurveData, theme: CanvasTheme, size: Size): void {
  const fraction = curveAt(data.nPast, data.constants);
  const x = scale.x(data.nPast);
  drawLine(ctx, theme.accent, 2, [[x, scale.y(1) - 4], [x, scale.y(0)]]);
  ctx.beginPath();
  ctx.arc(x, scale.y(fraction), 4, 0, 7);
  ctx.fillStyle = theme.accent;
  ctx.fill();
  ctx.strokeStyle = theme.background;
  ctx.lineWidth = 1.5;
  ctx.stroke();
  const count = data.tokens === null ? "" : `, ${int(curveTokens(data.tokens, fraction))} tokens`;
  const label = `n_past ${int(data.nPast)}: R = ${percent(fraction)}${count}`;
  ctx.font = `600 ${theme.font}`;
  ctx.fillStyle = theme.text;
  ctx.textAlign = "left";
  ctx.fillText(label, Math.max(2, Math.min(size.width - ctx.measureText(label).width - 2, x - 4)), 9);
}

// Last and upon the ground, because the line of the depth may stand where the words are.
function drawThreshold(ctx: CanvasRenderingContext2D, scale: Scale, m: number, theme: CanvasTheme): void {
  const label = `M = ${int(m)}`;
  const [x, y] = [scale.x(m) + 4, scale.y(1) + 11];
  ctx.font = theme.font;
  ctx.fillStyle = theme.background;
  ctx.fillRect(x - 1, y - 7, ctx.measureText(label).width + 2, 14);
  write(ctx, theme, label, x, y);
}

/** Draw the curve with M and the depth that is set; nothing where the curve is undefined. */
export function drawCurve(ctx: CanvasRenderingContext2D, data: CurveData, theme: CanvasTheme, size: Size): void {
  if (curveProblem(data.constants)) return;
  const { k, m, rBase } = data.constants;
  const extent = curveExtent(data);
  const scale = scaleOf(size, extent);
  drawAxes(ctx, scale, extent, rBase, theme, size);
  drawLine(ctx, theme.edge, 1, [[scale.x(m), scale.y(1)], [scale.x(m), scale.y(0)]], [2, 3]);
  const bends = [0, m, Math.min(extent, m * k), extent];
  drawLine(ctx, theme.text, 1.6, bends.map((n) => [scale.x(n), scale.y(curveAt(n, data.constants))] as const));
  if (data.budget) drawBudget(ctx, scale, data.budget, theme);
  drawDepth(ctx, scale, data, theme, size);
  drawThreshold(ctx, scale, m, theme);
}
