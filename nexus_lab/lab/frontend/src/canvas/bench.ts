/**
 * Measures the figures in a browser. `dev/build_bench.mjs` bundles it to `dev/out/bench.js`, which `dev/bench.html`
 * loads; it is no part of the widget. A driver (playwright) opens that page, waits for `window.nexusBench`, and calls
 *
 *   await window.nexusBench.heatmap({ rows, cols, frames, width? })
 *     -> { fps, frames, draw_ms: number[] }
 *     rows: layers; cols: heads; frames: 200 for a film. Every frame has its own values and is drawn in an animation
 *     frame of its own; `fps` is frames by wall clock, so it is bounded by the screen's rate, and `draw_ms` is what
 *     each drawing took by itself.
 *
 *   await window.nexusBench.slider({ points })
 *     -> { ms: number[], drawn_ms: number[] }
 *     Mounts the Splice panel and moves its K slider `points` times. `ms` is from the input event to the end of the
 *     frame that shows the new curve; `drawn_ms` is until the curve's drawing calls were made.
 *
 *   await window.nexusBench.strip({ tokens, width? })
 *     -> { gather_ms, draw_ms, move_ms }
 *     Token strip of a long sequence: the pass over the tokens, one drawing with that pass, one move of the window.
 *
 * Times are milliseconds of `performance.now()`.
 */
import { h, render } from "preact";
import { connect, type Channel } from "../client";
import { SplicePanel } from "../panels/splice";
import type { SplicePart } from "../protocol";
import { VIRIDIS } from "./colormap";
import { drawHeatmap, layoutHeatmap } from "./heatmap";
import { columnsFor, drawStrip, drawStripWindow, STRIP_HEIGHT, type StripData } from "./strip";
import { prepareCanvas, readTheme } from "./theme";

const WIDTH = 800;

export interface NexusBench {
  heatmap(options: { rows: number; cols: number; frames: number; width?: number }): Promise<{
    fps: number;
    frames: number;
    draw_ms: number[];
  }>;
  slider(options: { points: number }): Promise<{ ms: number[]; drawn_ms: number[] }>;
  strip(options: { tokens: number; width?: number }): Promise<{ gather_ms: number; draw_ms: number; move_ms: number }>;
}

declare global {
  interface Window {
    nexusBench: NexusBench;
  }
}

function stage(): HTMLElement {
  const root = document.querySelector<HTMLElement>(".nl");
  if (!root) throw new Error("the bench page has no .nl element");
  render(null, root);
  root.replaceChildren();
  return root;
}

function stageCanvas(width: number, height: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  stage().append(canvas);
  return canvas;
}

const nextFrame = (): Promise<number> => new Promise((resolve) => requestAnimationFrame(resolve));

/** The first task after the frame that is due: its drawing calls have been handed over by then. */
async function frameEnd(): Promise<void> {
  await nextFrame();
  const { port1, port2 } = new MessageChannel();
  await new Promise((resolve) => {
    port1.onmessage = resolve;
    port2.postMessage(null);
  });
  port1.close();
}

function filmOf(rows: number, cols: number, frames: number): Float32Array[] {
  let state = 1;
  const next = () => (state = (state * 16807) % 2147483647) / 2147483647;
  return Array.from({ length: frames }, () => Float32Array.from({ length: rows * cols }, () => 0.3 * next()));
}

const heatmap: NexusBench["heatmap"] = async ({ rows, cols, frames, width = WIDTH }) => {
  const { height } = layoutHeatmap(width, rows, cols);
  const canvas = stageCanvas(width, height);
  const film = filmOf(rows, cols, frames);
  const draw_ms: number[] = [];
  await frameEnd();
  const began = performance.now();
  for (const values of film) {
    await nextFrame();
    const start = performance.now();
    const ctx = prepareCanvas(canvas, width, height);
    if (!ctx) throw new Error("no canvas context");
    const data = { layers: rows, heads: cols, values, floor: null, range: [0, 0.25] as const, map: VIRIDIS, focus: { layer: 0, head: 0 } };
    drawHeatmap(ctx, data, readTheme(canvas), { width, height });
    draw_ms.push(performance.now() - start);
  }
  await frameEnd();
  return { fps: (1000 * frames) / (performance.now() - began), frames, draw_ms };
};

function sliderPart(): SplicePart {
  return {
    tools: [{ tool: "block", tokens: 431, compiled: [] }],
    constants: { k: 4, m: 256, r_base: 0.05 },
    n_ctx: 8192,
    settings: {
      tool: "block",
      n_past: 648,
      context: "system",
      contract: "fixed",
      epsilon: 0.02,
      repair: "leading",
      budget: null,
      k: 4,
      measure: true,
      attention: false,
    },
    run: null,
    unavailable: null,
    last: [],
  };
}

function silentChannel(): Channel {
  return {
    send: () => undefined,
    on(callback) {
      queueMicrotask(() => callback({ kind: "parts", revision: 1, parts: { splice: sliderPart() } }, []));
      return () => undefined;
    },
  };
}

const slider: NexusBench["slider"] = async ({ points }) => {
  const root = stage();
  const client = connect(silentChannel());
  render(h(SplicePanel, { client }), root);
  await frameEnd();
  await frameEnd();
  const input = root.querySelector<HTMLInputElement>("input.kslider");
  const canvas = root.querySelector<HTMLCanvasElement>(".curve canvas");
  const ctx = canvas?.getContext("2d");
  if (!input || !ctx) throw new Error("the slider did not appear");
  let drawn = 0;
  const stroke = ctx.stroke.bind(ctx) as () => void;
  ctx.stroke = () => {
    stroke();
    drawn = performance.now();
  };
  const ms: number[] = [];
  const drawn_ms: number[] = [];
  for (let point = 0; point < points; point += 1) {
    input.value = String(2 + (point % 28) * 0.5);
    const before = drawn;
    const start = performance.now();
    input.dispatchEvent(new InputEvent("input", { bubbles: true }));
    await frameEnd();
    ms.push(performance.now() - start);
    if (drawn === before) throw new Error("the curve was not drawn again");
    drawn_ms.push(drawn - start);
  }
  client.close();
  render(null, root);
  return { ms, drawn_ms };
};

const strip: NexusBench["strip"] = async ({ tokens, width = WIDTH }) => {
  const states = Uint8Array.from({ length: tokens }, (_, index) => Math.floor(index / 997) % 4);
  const positions = Int32Array.from(states, (state, index) => (state === 3 ? -1 : index));
  const data: StripData = { states, positions, extent: tokens, starts: [] };
  const canvas = stageCanvas(width, STRIP_HEIGHT);
  await frameEnd();
  const start = performance.now();
  columnsFor(data, width);
  const gathered = performance.now();
  const ctx = prepareCanvas(canvas, width, STRIP_HEIGHT);
  if (!ctx) throw new Error("no canvas context");
  const size = { width, height: STRIP_HEIGHT };
  drawStrip(ctx, data, readTheme(canvas), size);
  const drawn = performance.now();
  drawStripWindow(ctx, { start: 0, stop: 25 }, tokens, readTheme(canvas), size);
  return { gather_ms: gathered - start, draw_ms: drawn - gathered, move_ms: performance.now() - drawn };
};

window.nexusBench = { heatmap, slider, strip };
