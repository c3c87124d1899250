/**
 * Token strip: a row with the state of each logical token, and below it the position of each in the cache. Long
 * sequences are first gathered per pixel column, so that 200,000 tokens cost one pass and a thousand columns.
 */

import { int } from "../format";
import { drawLine, write, type Point } from "./pen";
import { STATE_NAMES, stateColor, stateFill } from "./patterns";
import type { Size } from "./size";
import type { CanvasTheme } from "./theme";

export interface StripData {
  /** Index into `STATE_NAMES` of each logical token. */
  states: Uint8Array;
  /** Position of each in the cache; -1 where dropped. */
  positions: Int32Array;
  /** Tokens on the axis: those of the whole program, also while looking back. */
  extent: number;
  /** Logical indices where a message or block starts. */
  starts: readonly number[];
}

/** Tokens that are shown one by one below the strip. */
export interface StripWindow {
  start: number;
  stop: number;
}

/** What lies under each pixel column. */
export interface StripColumns {
  count: number;
  /** Tokens of each state, four numbers a column. */
  shares: Uint32Array;
  /** Lowest and highest position, -1 where no token of the column has one. */
  low: Int32Array;
  high: Int32Array;
}

const DROPPED = 3;
const STATES = STATE_NAMES.length;

export const STRIP_HEIGHT = 96;
const LEFT = 40;
const RIGHT = 8;
const STATE_ROW = 22;
const PLOT_TOP = 33.5;
const PLOT_BOTTOM = 78.5;

/** Gather tokens into `count` columns; a column without a token has no share and no position. */
export function gatherColumns(states: Uint8Array, positions: Int32Array, extent: number, count: number): StripColumns {
  const shares = new Uint32Array(count * STATES);
  const low = new Int32Array(count).fill(-1);
  const high = new Int32Array(count).fill(-1);
  const width = Math.max(1, extent) / count;
  for (let column = 0, index = 0; column < count; column += 1) {
    const stop = column === count - 1 ? states.length : Math.min(states.length, Math.ceil((column + 1) * width));
    let [lowest, highest] = [-1, -1];
    for (; index < stop; index += 1) {
      const slot = column * STATES + (states[index] as number);
      shares[slot] = (shares[slot] as number) + 1;
      const position = positions[index] as number;
      if (position < 0) continue;
      if (lowest < 0 || position < lowest) lowest = position;
      if (position > highest) highest = position;
    }
    low[column] = lowest;
    high[column] = highest;
  }
  return { count, shares, low, high };
}

/** State that most tokens of a column have; -1 for an empty column. */
export function mainState(columns: StripColumns, column: number): number {
  let best = -1;
  let most = 0;
  for (let state = 0; state < STATES; state += 1) {
    const share = columns.shares[column * STATES + state] as number;
    if (share > most) {
      most = share;
      best = state;
    }
  }
  return best;
}

export interface Run {
  state: number;
  start: number;
  stop: number;
}

/** Neighbouring tokens of one state. */
export function runsOf(states: Uint8Array): Run[] {
  const runs: Run[] = [];
  for (let index = 0; index < states.length; index += 1) {
    const state = states[index] as number;
    const last = runs[runs.length - 1];
    if (last?.state === state) last.stop = index + 1;
    else runs.push({ state, start: index, stop: index + 1 });
  }
  return runs;
}

/** Pixel of a logical index. */
export function stripX(index: number, extent: number, width: number): number {
  return LEFT + (index / Math.max(1, extent)) * (width - LEFT - RIGHT);
}

/** Logical index under a pixel, within the axis. */
export function stripIndex(x: number, extent: number, width: number): number {
  const part = (x - LEFT) / Math.max(1, width - LEFT - RIGHT);
  return Math.max(0, Math.min(extent - 1, Math.round(part * extent)));
}

/** A round number at or above `value`, for the end of an axis. */
export function niceCeiling(value: number, least = 1): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, value)));
  const factor = [1, 1.5, 2, 3, 4, 5, 8].find((step) => step * power >= value * (1 - 1e-9)) ?? 10;
  return Number((factor * power).toPrecision(3));
}

interface Frame {
  x: (index: number) => number;
  y: (position: number) => number;
}

function drawRuns(ctx: CanvasRenderingContext2D, data: StripData, theme: CanvasTheme, { x, y }: Frame): void {
  const runs = runsOf(data.states);
  STATE_NAMES.forEach((name, state) => {
    ctx.fillStyle = stateFill(ctx, name, theme);
    for (const run of runs) {
      if (run.state === state) ctx.fillRect(x(run.start), 0, Math.max(1, x(run.stop) - x(run.start)), STATE_ROW);
    }
  });
  outlineDropped(ctx, runs.filter((run) => run.state === DROPPED), theme, x);
  for (const run of runs) {
    if (run.state === DROPPED) continue;
    drawPositions(ctx, stateColor(STATE_NAMES[run.state] ?? "computed", theme), data.positions, run, { x, y });
  }
}

// A run of one state may hold a jump of position (a splice behind a gap): one line for each straight part.
function drawPositions(ctx: CanvasRenderingContext2D, color: string, positions: Int32Array, run: Run, { x, y }: Frame): void {
  let start = run.start;
  for (let index = run.start + 1; index <= run.stop; index += 1) {
    const straight = index < run.stop && positions[index] === (positions[index - 1] as number) + 1;
    if (straight) continue;
    const end: Point = [Math.max(x(index), x(start) + 1), y(positions[index - 1] as number)];
    drawLine(ctx, color, 1.8, [[x(start), y(positions[start] as number)], end]);
    start = index;
  }
}

function outlineDropped(ctx: CanvasRenderingContext2D, runs: Run[], theme: CanvasTheme, x: Frame["x"]): void {
  ctx.setLineDash([3, 2]);
  ctx.strokeStyle = theme.ops.drop;
  ctx.lineWidth = 1;
  for (const run of runs) ctx.strokeRect(x(run.start) + 0.5, 0.5, Math.max(1, x(run.stop) - x(run.start) - 1), STATE_ROW - 1);
  ctx.setLineDash([]);
}

function drawColumns(ctx: CanvasRenderingContext2D, columns: StripColumns, theme: CanvasTheme, y: Frame["y"]): void {
  STATE_NAMES.forEach((name, state) => {
    ctx.fillStyle = stateFill(ctx, name, theme);
    for (let column = 0; column < columns.count; column += 1) {
      const [top, height] = shareOf(columns, column, state);
      if (height > 0) ctx.fillRect(LEFT + column, top, 1, height);
    }
  });
  const dropped: Run[] = [];
  for (let column = 0; column < columns.count; column += 1) {
    if (mainState(columns, column) !== DROPPED) continue;
    const last = dropped[dropped.length - 1];
    if (last?.stop === column) last.stop = column + 1;
    else dropped.push({ state: DROPPED, start: column, stop: column + 1 });
  }
  outlineDropped(ctx, dropped, theme, (column) => LEFT + column);
  for (let column = 0; column < columns.count; column += 1) {
    const low = columns.low[column] as number;
    if (low < 0) continue;
    const state = STATE_NAMES[mainState(columns, column)] ?? "computed";
    const top = y(columns.high[column] as number);
    ctx.fillStyle = stateColor(state === "dropped" ? "computed" : state, theme);
    ctx.fillRect(LEFT + column, top - 1, 1, Math.max(2, y(low) - top));
  }
}

// States of a column are stacked by share, and each that is present keeps at least two pixels.
function shareOf(columns: StripColumns, column: number, wanted: number): [top: number, height: number] {
  const first = column * STATES;
  let tokens = 0;
  for (let state = 0; state < STATES; state += 1) tokens += columns.shares[first + state] as number;
  let [before, own, all] = [0, 0, 0];
  for (let state = 0; state < STATES; state += 1) {
    const share = columns.shares[first + state] as number;
    const raised = share === 0 ? 0 : Math.max(2, (share / tokens) * STATE_ROW);
    if (state < wanted) before += raised;
    if (state === wanted) own = raised;
    all += raised;
  }
  return own === 0 ? [0, 0] : [(before / all) * STATE_ROW, (own / all) * STATE_ROW];
}

function tickStep(extent: number): number {
  const rough = extent / 3.5;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  return [5, 2, 1].map((factor) => factor * power).find((step) => step <= rough) ?? power;
}

function drawScales(ctx: CanvasRenderingContext2D, data: StripData, theme: CanvasTheme, size: Size, top: number, { x }: Frame): void {
  const right = size.width - RIGHT;
  for (const place of [PLOT_TOP, (PLOT_TOP + PLOT_BOTTOM) / 2, PLOT_BOTTOM]) {
    const y = Math.floor(place) + 0.5;
    drawLine(ctx, theme.rule, 1, [[LEFT, y], [right, y]]);
  }
  write(ctx, theme, "state", LEFT - 6, 11, "right");
  write(ctx, theme, int(top), LEFT - 6, PLOT_TOP, "right");
  write(ctx, theme, "0", LEFT - 6, PLOT_BOTTOM, "right");
  const end = `logical index ${int(data.extent)}`;
  write(ctx, theme, end, right, 90, "right");
  const room = right - ctx.measureText(end).width - 24;
  const step = Math.max(1, tickStep(data.extent));
  for (let index = 0; index < data.extent && x(index) < room; index += step) {
    write(ctx, theme, int(index), x(index), 90, index === 0 ? "left" : "center");
  }
  write(ctx, theme, "position", LEFT + 4, 42);
  const reached = x(data.states.length);
  if (x(data.extent) - reached > 140) write(ctx, theme, "not yet run at this step", reached + 8, 11);
}

function drawStarts(ctx: CanvasRenderingContext2D, data: StripData, theme: CanvasTheme, x: Frame["x"]): void {
  ctx.fillStyle = theme.background;
  let last = -Infinity;
  for (const start of data.starts) {
    const at = Math.round(x(start));
    if (start === 0 || at - last < 4) continue;
    ctx.fillRect(at, 0, 1, STATE_ROW);
    last = at;
  }
}

/** The frame around the window; on a canvas of its own, so that the strip stays while it moves. */
export function drawStripWindow(
  ctx: CanvasRenderingContext2D,
  { start, stop }: StripWindow,
  extent: number,
  theme: CanvasTheme,
  size: Size,
): void {
  if (stop <= start) return;
  const left = stripX(start, extent, size.width);
  const right = stripX(stop, extent, size.width);
  ctx.strokeStyle = theme.accent;
  ctx.lineWidth = 2;
  ctx.strokeRect(left - 1.5, 1, Math.max(6, right - left) + 3, 78);
}

export function highestPosition(positions: Int32Array): number {
  let highest = 0;
  for (const position of positions) if (position > highest) highest = position;
  return highest;
}

/** Draw the strip without its window. */
export function drawStrip(ctx: CanvasRenderingContext2D, data: StripData, theme: CanvasTheme, size: Size): void {
  const top = niceCeiling(highestPosition(data.positions) + 1);
  const frame: Frame = {
    x: (index) => stripX(index, data.extent, size.width),
    y: (position) => PLOT_BOTTOM - (position / top) * (PLOT_BOTTOM - PLOT_TOP),
  };
  drawScales(ctx, data, theme, size, top, frame);
  if (isDense(data.extent, size.width)) drawColumns(ctx, columnsFor(data, size.width), theme, frame.y);
  else drawRuns(ctx, data, theme, frame);
  drawStarts(ctx, data, theme, frame.x);
}

/** Whether several tokens share a pixel column, so that they are gathered before drawing. */
export function isDense(extent: number, width: number): boolean {
  return extent > 4 * Math.max(1, width - LEFT - RIGHT);
}

export function columnsFor(data: StripData, width: number): StripColumns {
  return gatherColumns(data.states, data.positions, data.extent, Math.max(1, Math.floor(width - LEFT - RIGHT)));
}
