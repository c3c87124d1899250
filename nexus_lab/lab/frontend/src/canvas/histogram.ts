/** Margins of recorded decisions with the threshold tau: left of it they would escalate (hatched). */
import { fixed, int, percent } from "../format";
import type { CanvasTheme } from "./theme";

export interface HistogramData {
  margins: readonly { margin: number; mark: "right" | "wrong" | null }[];
  tau: number;
  /** End of the axis; margins beyond it are counted in words. */
  end: number;
  /** Margin of the decision that is looked at. */
  current: number | null;
}

export interface HistogramLayout {
  width: number;
  height: number;
  x(margin: number): number;
  /** The margin at a place. */
  margin(x: number): number;
  baseline: number;
  top: number;
}

export const HISTOGRAM_HEIGHT = 204;
const BINS = 30;
const LEFT = 34;
const RIGHT = 8;
const TOP = 46;
const BOTTOM = 50;

export function histogramLayout(width: number, end: number, height = HISTOGRAM_HEIGHT): HistogramLayout {
  const span = Math.max(1, width - LEFT - RIGHT);
  return {
    width,
    height,
    x: (margin) => LEFT + (Math.min(margin, end) / end) * span,
    margin: (x) => ((x - LEFT) / span) * end,
    baseline: height - BOTTOM,
    top: TOP,
  };
}

/** Counts of the bins, and how many margins lie beyond the axis. */
export function binMargins(margins: HistogramData["margins"], end: number): { counts: number[]; beyond: number } {
  const counts = new Array<number>(BINS).fill(0);
  let beyond = 0;
  for (const { margin } of margins) {
    if (margin >= end) beyond += 1;
    else {
      const bin = Math.max(0, Math.floor((margin / end) * BINS));
      counts[bin] = (counts[bin] ?? 0) + 1;
    }
  }
  return { counts, beyond };
}

/** The least round number that holds the highest bin, even so that half of it is a number of decisions. */
export function topOf(counts: readonly number[]): number {
  const most = Math.max(2, ...counts);
  for (let scale = 1; ; scale *= 10) {
    for (const step of [2, 4, 6, 10]) if (step * scale >= most) return step * scale;
    if (30 * scale >= most) return most <= 20 * scale ? 20 * scale : 30 * scale;
  }
}

function hatch(c: CanvasRenderingContext2D, theme: CanvasTheme, layout: HistogramLayout): void {
  c.save();
  c.globalAlpha = 0.08;
  c.fillStyle = theme.text;
  c.fillRect(0, 0, layout.width, layout.height);
  c.globalAlpha = 1;
  c.strokeStyle = theme.text;
  c.lineWidth = 2.4;
  c.beginPath();
  for (let x = -layout.height; x < layout.width; x += 8.5) {
    c.moveTo(x, layout.height);
    c.lineTo(x + layout.height, 0);
  }
  c.stroke();
  c.restore();
}

function drawBars(c: CanvasRenderingContext2D, counts: readonly number[], top: number, data: HistogramData, theme: CanvasTheme, layout: HistogramLayout): void {
  const { x, baseline } = layout;
  const tau = x(data.tau);
  const path = () => {
    c.beginPath();
    counts.forEach((count, bin) => {
      if (!count) return;
      const from = x((bin * data.end) / BINS) + 0.5;
      const to = x(((bin + 1) * data.end) / BINS) - 0.5;
      const height = (count / top) * (baseline - TOP);
      c.rect(from, baseline - height, to - from, height);
    });
  };
  for (const escalates of [true, false]) {
    c.save();
    c.beginPath();
    if (escalates) c.rect(0, 0, tau, layout.height);
    else c.rect(tau, 0, layout.width - tau, layout.height);
    c.clip();
    path();
    if (escalates) {
      c.clip();
      hatch(c, theme, layout);
    } else {
      c.globalAlpha = 0.62;
      c.fillStyle = theme.ops.append;
      c.fill();
    }
    c.restore();
  }
}

function drawAxes(c: CanvasRenderingContext2D, top: number, beyond: number, data: HistogramData, theme: CanvasTheme, layout: HistogramLayout): void {
  const { x, baseline, width, height } = layout;
  c.textBaseline = "middle";
  c.lineWidth = 1;
  for (const count of [0, top / 2, top]) {
    const y = Math.round(baseline - (count / top) * (baseline - TOP)) + 0.5;
    c.strokeStyle = count ? theme.rule : theme.edge;
    c.beginPath();
    c.moveTo(LEFT, y);
    c.lineTo(width - RIGHT, y);
    c.stroke();
    c.fillStyle = theme.muted;
    c.textAlign = "right";
    c.fillText(int(count), LEFT - 5, y);
  }
  const digits = data.end >= 0.6 ? 1 : data.end >= 0.06 ? 2 : data.end >= 0.012 ? 3 : 4;
  for (let tick = 0; tick <= 6; tick += 1) {
    const margin = (tick * data.end) / 6;
    c.textAlign = tick === 6 ? "right" : "center";
    c.fillText(fixed(margin, digits), x(margin), baseline + 20);
  }
  c.textAlign = "left";
  c.fillText("margin of the two best stage-1 scores; height is decisions; × marked wrong", LEFT, height - 10, width - LEFT - RIGHT);
  if (beyond) {
    c.textAlign = "right";
    c.fillText(`${int(beyond)} beyond ${fixed(data.end, digits)}`, width - RIGHT, TOP + 9);
  }
  c.fillStyle = theme.bad;
  c.textAlign = "center";
  for (const { margin, mark } of data.margins) if (mark === "wrong") c.fillText("×", x(margin), baseline + 7);
}

function drawCurrent(c: CanvasRenderingContext2D, counts: readonly number[], top: number, data: HistogramData, theme: CanvasTheme, layout: HistogramLayout): void {
  if (data.current === null) return;
  const at = layout.x(data.current);
  const tau = layout.x(data.tau);
  const count = counts[Math.min(BINS - 1, Math.floor((data.current / data.end) * BINS))] ?? 0;
  const y = layout.baseline - (count / top) * (layout.baseline - TOP) - 3;
  const what = data.current < data.tau ? "would escalate" : "resolves by itself";
  const words = `this request ${fixed(data.current, 4)}: ${what}`;
  c.font = `600 ${theme.font}`;
  const wide = c.measureText(words).width + 4;
  const end = layout.width - RIGHT;
  const right = Math.max(tau, at) + 8;
  const left = right + wide > end;
  // Beside both where there is room, else between them, and at the least inside the figure.
  const outer = Math.min(tau, at) - 8;
  const label = left ? (outer >= wide ? outer : Math.min(end, Math.max(wide, at - 8))) : right;
  c.strokeStyle = theme.text;
  c.fillStyle = theme.text;
  c.lineWidth = 1.5;
  c.beginPath();
  c.moveTo(at, y);
  c.lineTo(at, TOP - 12);
  c.lineTo(label, TOP - 12);
  c.stroke();
  c.beginPath();
  c.moveTo(at, layout.baseline + 1);
  c.lineTo(at - 4, layout.baseline + 8);
  c.lineTo(at + 4, layout.baseline + 8);
  c.fill();
  c.textAlign = left ? "right" : "left";
  c.fillText(words, label + (left ? -4 : 4), TOP - 12);
  c.font = theme.font;
}

function drawTau(c: CanvasRenderingContext2D, data: HistogramData, theme: CanvasTheme, layout: HistogramLayout): void {
  const at = layout.x(data.tau);
  c.strokeStyle = theme.accent;
  c.fillStyle = theme.accent;
  c.lineWidth = 2;
  c.beginPath();
  c.moveTo(at, 6);
  c.lineTo(at, layout.baseline);
  c.stroke();
  c.beginPath();
  c.rect(at - 5, 6, 10, 18);
  c.fill();
  c.strokeStyle = theme.onAccent;
  c.lineWidth = 1;
  c.beginPath();
  for (const offset of [-1.5, 1.5]) {
    c.moveTo(at + offset, 11);
    c.lineTo(at + offset, 19);
  }
  c.stroke();

  const n = data.margins.filter(({ margin }) => margin < data.tau).length;
  const all = data.margins.length;
  const bold = `τ = ${fixed(data.tau, 4)}`;
  const rest = all ? `${percent(n / all)} escalate (${int(n)} of ${int(all)})` : "";
  c.font = `600 ${theme.font}`;
  const width = c.measureText(bold).width + 5;
  c.font = theme.font;
  const whole = width + c.measureText(rest).width;
  const from = at + 14 + whole > layout.width - RIGHT ? at - 14 - whole : at + 14;
  c.textAlign = "left";
  c.fillStyle = theme.text;
  c.font = `600 ${theme.font}`;
  c.fillText(bold, from, 15);
  c.font = theme.font;
  c.fillStyle = theme.muted;
  c.fillText(rest, from + width, 15);
}

export function drawHistogram(c: CanvasRenderingContext2D, data: HistogramData, theme: CanvasTheme, layout: HistogramLayout): void {
  const { counts, beyond } = binMargins(data.margins, data.end);
  const top = topOf(counts);
  c.font = theme.font;
  drawAxes(c, top, beyond, data, theme, layout);
  drawBars(c, counts, top, data, theme, layout);
  drawCurrent(c, counts, top, data, theme, layout);
  drawTau(c, data, theme, layout);
}
