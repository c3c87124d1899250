/** Walking along a row by keys, and counting. */

/** Place that a key leads to in a row of `count`; null for a key that does not move. */
export function walk(key: string, at: number, count: number, step = 1, page = 0): number | null {
  const steps: Record<string, number> = {
    ArrowRight: step,
    ArrowLeft: -step,
    Home: -Infinity,
    End: Infinity,
    PageDown: page,
    PageUp: -page,
  };
  const by = steps[key];
  return by ? Math.max(0, Math.min(count - 1, at + by)) : null;
}

/** Keep a key from the page and from Lab. */
export function takeKey(event: KeyboardEvent): void {
  event.preventDefault();
  event.stopPropagation();
}

/** The numbers from `start` up to `stop`, without it. */
export function numbers(start: number, stop: number): number[] {
  return Array.from({ length: Math.max(0, stop - start) }, (_, offset) => start + offset);
}
