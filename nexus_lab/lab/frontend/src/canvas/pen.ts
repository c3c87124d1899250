/** Lines and words of a figure. */
import type { CanvasTheme } from "./theme";

export type Point = readonly [x: number, y: number];

export function drawLine(
  ctx: CanvasRenderingContext2D,
  color: string,
  width: number,
  points: readonly Point[],
  dash: number[] = [],
): void {
  ctx.strokeStyle = color;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  for (const [x, y] of points) ctx.lineTo(x, y);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** Words in the muted ink of axes, on the middle of their line. */
export function write(
  ctx: CanvasRenderingContext2D,
  theme: CanvasTheme,
  text: string,
  x: number,
  y: number,
  align: CanvasTextAlign = "left",
): void {
  ctx.font = theme.font;
  ctx.fillStyle = theme.muted;
  ctx.textBaseline = "middle";
  ctx.textAlign = align;
  ctx.fillText(text, x, y);
}
