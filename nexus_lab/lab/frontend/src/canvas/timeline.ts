/** Which cards of a long row of cards exist in the document: those in view, and a few on either side. */

export interface CardRow {
  /** Width of a card with its gap, pixels. */
  step: number;
  /** Width of all cards together. */
  total: number;
}

export interface CardRange {
  first: number;
  /** One past the last card. */
  stop: number;
}

/** Cards fill the row while they fit, and keep their least width when they no longer do. */
export function layoutCards(count: number, viewport: number, least: number): CardRow {
  if (count === 0) return { step: least, total: 0 };
  const step = Math.max(least, Math.floor(viewport / count));
  return { step, total: step * count };
}

/** Cards to put into the document for a scroll offset. */
export function visibleCards(count: number, row: CardRow, scroll: number, viewport: number, spare = 6): CardRange {
  const first = Math.max(0, Math.floor(scroll / row.step) - spare);
  const stop = Math.min(count, Math.ceil((scroll + viewport) / row.step) + spare);
  return { first: Math.min(first, count), stop: Math.max(Math.min(first, count), stop) };
}

/** Scroll offset that brings a card into view with as little movement as possible. */
export function scrollToCard(index: number, row: CardRow, scroll: number, viewport: number): number {
  const start = index * row.step;
  const stop = start + row.step;
  if (start < scroll) return Math.max(0, start - row.step);
  if (stop > scroll + viewport) return Math.min(row.total - viewport, stop - viewport + row.step);
  return scroll;
}
