/** A row of cards that scrolls: those in view are in the document, and the current one, which may hold the focus. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { layoutCards, scrollToCard, visibleCards } from "../canvas/timeline";
import { numbers } from "../canvas/walk";
import { useWidth } from "./canvas";

export function CardRow({ count, current, least, gap, card, ...rest }: {
  count: number;
  /** Index of the card to keep in sight; below 0 for none. */
  current: number;
  /** Least width of a card with its gap. */
  least: number;
  gap: number;
  /** Draws a card; the style puts it in its place. */
  card: (index: number, style: string) => ComponentChildren;
  class: string;
  role: "listbox" | "group";
  "aria-label": string;
  onKeyDown?: (event: KeyboardEvent) => void;
}) {
  const [ref, width] = useWidth<HTMLDivElement>(1100);
  const box = ref as { current: HTMLDivElement | null };
  const [scroll, setScroll] = useState(0);
  const focused = useRef(false);
  const row = layoutCards(count, width + gap, least);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || current < 0) return;
    const next = scrollToCard(current, row, element.scrollLeft, width);
    if (next !== element.scrollLeft) element.scrollLeft = next;
    setScroll(element.scrollLeft);
    if (focused.current) element.querySelector<HTMLElement>('[aria-current="step"]')?.focus({ preventScroll: true });
  }, [current, width, count]);
  const { first, stop } = visibleCards(count, row, scroll, width);
  const indices = numbers(first, stop);
  if (current >= 0 && current < count && (current < first || current >= stop)) indices.push(current);
  const hold = (holds: boolean) => () => {
    focused.current = holds;
  };
  return (
    <div
      {...rest}
      ref={ref}
      onScroll={(event) => setScroll(event.currentTarget.scrollLeft)}
      onFocusCapture={hold(true)}
      onBlurCapture={hold(false)}
    >
      <div class="cards-in" style={{ width: `${row.total - gap}px` }}>
        {indices.map((index) => card(index, `left:${index * row.step}px;width:${row.step - gap}px`))}
      </div>
    </div>
  );
}
