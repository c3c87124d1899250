/** Colours for canvases, read from the tokens, and a canvas that is sharp on any screen. */
import type { OpKind } from "../protocol";

export interface CanvasTheme {
  text: string;
  muted: string;
  background: string;
  rule: string;
  edge: string;
  accent: string;
  onAccent: string;
  ok: string;
  warn: string;
  bad: string;
  ops: Record<OpKind, string>;
  font: string;
}

/** Reads the tokens as they apply to `element`; read again whenever `client.theme` changes. */
export function readTheme(element: Element): CanvasTheme {
  const style = getComputedStyle(element);
  const token = (name: string, otherwise: string) => style.getPropertyValue(name).trim() || otherwise;
  const op = (kind: OpKind) => token(`--nl-op-${kind}`, "#5f6b76");
  return {
    text: token("--nl-text", "#000000"),
    muted: token("--nl-muted", "#575757"),
    background: token("--nl-bg", "#ffffff"),
    rule: token("--nl-rule", "#e0e0e0"),
    edge: token("--nl-edge", "#757575"),
    accent: token("--nl-accent", "#1976d2"),
    onAccent: token("--nl-on-accent", "#ffffff"),
    ok: token("--nl-ok", "#1b5e20"),
    warn: token("--nl-warn", "#9a4a00"),
    bad: token("--nl-bad", "#b3261e"),
    ops: { append: op("append"), splice: op("splice"), repair: op("repair"), drop: op("drop"), repos: op("repos") },
    font: `11px ${style.fontFamily || "sans-serif"}`,
  };
}

/** Sizes the canvas for the screen and gives a context that draws in CSS px; null where there is none. */
export function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = globalThis.devicePixelRatio || 1;
  const pixels = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))] as const;
  if (canvas.width !== pixels[0]) canvas.width = pixels[0];
  if (canvas.height !== pixels[1]) canvas.height = pixels[1];
  const context = canvas.getContext("2d");
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}
