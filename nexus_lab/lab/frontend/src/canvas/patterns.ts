/** Pattern of each token state on the canvas, equal to the CSS patterns of the legend. */

import type { OpKind } from "../protocol";
import { drawLine } from "./pen";
import type { CanvasTheme } from "./theme";

/** Index is the value of a token in the buffer of `cache.state`. */
export const STATE_NAMES = ["computed", "spliced", "repaired", "dropped"] as const;
export type TokenState = (typeof STATE_NAMES)[number];

/** Op that made a token what it is; state and op share colour and pattern. */
export const STATE_OPS: Record<TokenState, OpKind> = {
  computed: "append",
  spliced: "splice",
  repaired: "repair",
  dropped: "drop",
};

export function stateColor(state: TokenState, theme: CanvasTheme): string {
  return theme.ops[STATE_OPS[state]];
}

interface Look {
  tile: number;
  wash: number;
  mark: (ctx: CanvasRenderingContext2D, tile: number, color: string) => void;
}

function stripes(ctx: CanvasRenderingContext2D, tile: number, color: string): void {
  for (const offset of [-tile, 0, tile]) drawLine(ctx, color, 1.6, [[offset, tile], [offset + tile, 0]]);
}

function dots(ctx: CanvasRenderingContext2D, tile: number): void {
  ctx.beginPath();
  ctx.arc(tile / 2, tile / 2, 1.4, 0, 7);
  ctx.fill();
}

function crossHatch(ctx: CanvasRenderingContext2D, tile: number, color: string): void {
  ctx.globalAlpha = 0.45;
  drawLine(ctx, color, 0.8, [[0, 0], [tile, tile]]);
  drawLine(ctx, color, 0.8, [[tile, 0], [0, tile]]);
}

const LOOKS: Record<TokenState, Look> = {
  computed: { tile: 6, wash: 0.42, mark: () => undefined },
  spliced: { tile: 6, wash: 0.28, mark: stripes },
  repaired: { tile: 5, wash: 0.28, mark: dots },
  dropped: { tile: 6, wash: 0, mark: crossHatch },
};

// Few colours ever occur: two themes, four states, a screen or two.
const tiles = new Map<string, HTMLCanvasElement>();

function paintTile(look: Look, color: string, background: string, ratio: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const pixels = Math.round(look.tile * ratio);
  canvas.width = pixels;
  canvas.height = pixels;
  const ctx = canvas.getContext("2d");
  if (!ctx) return canvas;
  ctx.scale(pixels / look.tile, pixels / look.tile);
  ctx.fillStyle = background;
  ctx.fillRect(0, 0, look.tile, look.tile);
  ctx.globalAlpha = look.wash;
  ctx.fillStyle = color;
  ctx.fillRect(0, 0, look.tile, look.tile);
  ctx.globalAlpha = 1;
  look.mark(ctx, look.tile, color);
  return canvas;
}

function tileOf(state: TokenState, theme: CanvasTheme, ratio: number): HTMLCanvasElement {
  const color = stateColor(state, theme);
  const key = [state, color, theme.background, ratio].join("|");
  const tile = tiles.get(key) ?? paintTile(LOOKS[state], color, theme.background, ratio);
  tiles.set(key, tile);
  return tile;
}

/** Fill style of a token state; the plain colour where a context has no patterns. */
export function stateFill(
  ctx: CanvasRenderingContext2D,
  state: TokenState,
  theme: CanvasTheme,
): CanvasPattern | string {
  const ratio = globalThis.devicePixelRatio || 1;
  const tile = tileOf(state, theme, ratio);
  const pattern = tile.width > 0 ? ctx.createPattern(tile, "repeat") : null;
  if (!pattern) return stateColor(state, theme);
  const shrink = LOOKS[state].tile / tile.width;
  if (typeof DOMMatrix !== "undefined") pattern.setTransform(new DOMMatrix().scale(shrink));
  return pattern;
}
