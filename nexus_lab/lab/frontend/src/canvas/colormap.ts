/**
 * Colour maps of the figures: viridis for magnitudes, vik for signed values only. The stops are the same in both
 * themes, so that a figure means the same everywhere; between stops the colour is interpolated in sRGB.
 */

export type Rgb = readonly [number, number, number];

export interface ColorMap {
  name: "viridis" | "vik";
  /** Colour of each of 256 steps, as CSS text. */
  css: readonly string[];
  /** Ink for a mark upon the end colours of the map. */
  endInk: string;
  stops: readonly Rgb[];
}

const STEPS = 256;
const VIRIDIS_STOPS = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725";
const VIK_STOPS = "001261 033e7d 1e6f9d 71a8c4 c9dde7 eacebd d39774 be6533 8b2706 590008";

function parse(stops: string): Rgb[] {
  return stops.split(" ").map((hex) => {
    const value = parseInt(hex, 16);
    return [value >> 16, (value >> 8) & 255, value & 255] as const;
  });
}

function between(stops: readonly Rgb[], t: number): Rgb {
  const place = Math.max(0, Math.min(1, t)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const low = stops[index] as Rgb;
  const high = stops[index + 1] as Rgb;
  const mix = (channel: 0 | 1 | 2): number =>
    Math.round(low[channel] + (high[channel] - low[channel]) * (place - index));
  return [mix(0), mix(1), mix(2)];
}

function build(name: ColorMap["name"], text: string, endInk: string): ColorMap {
  const stops = parse(text);
  const css = Array.from({ length: STEPS }, (_, step) => `rgb(${between(stops, step / (STEPS - 1)).join(",")})`);
  return { name, css, endInk, stops };
}

export const VIRIDIS = build("viridis", VIRIDIS_STOPS, "#000000");
export const VIK = build("vik", VIK_STOPS, "#ffffff");

/** Colour at `t` of 0 to 1, clamped to the ends; null where there is no value. */
export function colorAt(map: ColorMap, t: number): Rgb | null {
  return Number.isNaN(t) ? null : between(map.stops, t);
}

/** Same as `colorAt`, as CSS text from the table of 256 steps. */
export function cssColorAt(map: ColorMap, t: number): string | null {
  if (Number.isNaN(t)) return null;
  return map.css[Math.round(Math.max(0, Math.min(1, t)) * (STEPS - 1))] ?? null;
}

/** The map from left to right, as the bar of a legend. */
export function drawColorBar(
  ctx: CanvasRenderingContext2D,
  map: ColorMap,
  size: { width: number; height: number },
): void {
  for (let x = 0; x < size.width; x += 1) {
    ctx.fillStyle = cssColorAt(map, x / Math.max(1, size.width - 1)) ?? "transparent";
    ctx.fillRect(x, 0, 1, size.height);
  }
}
