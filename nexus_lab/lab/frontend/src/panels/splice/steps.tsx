/** The steps of a splice as cards, a frame of drift behind each; only those in view are in the document. */
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { layoutCards, scrollToCard, visibleCards } from "../../canvas/timeline";
import { ms } from "../../format";
import type { SpliceRun } from "../../protocol";
import { useWidth } from "../../ui";

const LEAST_CARD = 88;
const GAP = 2;

/** Step that a key leads to; null for a key that does not step. */
export function stepByKey(step: number, steps: number, key: string): number | null {
  const next = { ArrowRight: step + 1, ArrowLeft: step - 1, Home: 0, End: steps - 1 }[key];
  return next === undefined ? null : Math.max(0, Math.min(steps - 1, next));
}

export function StepCards({ steps, step, onStep }: {
  steps: SpliceRun["steps"];
  step: number;
  onStep: (step: number) => void;
}) {
  const [ref, width] = useWidth<HTMLDivElement>(760);
  const box = ref as { current: HTMLDivElement | null };
  const [scroll, setScroll] = useState(0);
  const holdsFocus = useRef(false);
  const row = layoutCards(steps.length, width + GAP, LEAST_CARD);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const next = scrollToCard(step, row, element.scrollLeft, width);
    if (next !== element.scrollLeft) element.scrollLeft = next;
    setScroll(element.scrollLeft);
    if (holdsFocus.current) element.querySelector<HTMLElement>('[aria-current="step"]')?.focus({ preventScroll: true });
  }, [step, width, steps.length]);
  const range = visibleCards(steps.length, row, scroll, width);
  const indices = Array.from({ length: range.stop - range.first }, (_, offset) => range.first + offset);
  if (step < range.first || step >= range.stop) indices.push(step);
  return (
    <div
      class="subs"
      ref={ref}
      role="group"
      aria-label="Steps of the splice"
      onScroll={(event) => setScroll(event.currentTarget.scrollLeft)}
      onFocusCapture={() => {
        holdsFocus.current = true;
      }}
      onBlurCapture={() => {
        holdsFocus.current = false;
      }}
      onKeyDown={(event) => {
        const next = stepByKey(step, steps.length, event.key);
        if (next === null) return;
        event.preventDefault();
        event.stopPropagation();
        onStep(next);
      }}
    >
      <div class="subs-in" style={{ width: `${row.total - GAP}px` }}>
        {indices.map((index) => {
          const own = steps[index];
          return own ? (
            <button
              key={index}
              type="button"
              class="sub"
              tabIndex={index === step ? 0 : -1}
              aria-current={index === step ? "step" : undefined}
              style={{ left: `${index * row.step}px`, width: `${row.step - GAP}px` }}
              title={`${own.name}: ${own.detail}`}
              onClick={() => onStep(index)}
            >
              <span>
                {index + 1} {own.name}
              </span>
              <span class="tiny muted">{own.detail || "\u00a0"}</span>
              <span class="tiny num">{ms(own.ms)}</span>
            </button>
          ) : null;
        })}
      </div>
    </div>
  );
}
