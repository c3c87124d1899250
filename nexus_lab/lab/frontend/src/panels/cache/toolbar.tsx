/** First, back, forward, last; where we stand; and on to the next breakpoint. */
import { int } from "../../format";
import { Button } from "../../ui";
import type { Stepper } from "./stepper";

const ICONS: Record<string, string> = {
  "First op": "M2 2h2v8H2zM10 2v8L5 6z",
  "Step back": "M9 1v10L3 6z",
  "Step forward": "M3 1v10l6-5z",
  "Last op": "M8 2h2v8H8zM2 2v8l5-4z",
};

export function StepButtons({ stepper, cursor, total }: { stepper: Stepper; cursor: number; total: number }) {
  const atStart = cursor <= 1;
  const atEnd = cursor >= total;
  const button = (name: string, disabled: boolean, onClick: () => void) => (
    <Button class="icon" aria-label={name} disabled={disabled} onClick={onClick}>
      <svg width="12" height="12" aria-hidden="true">
        <path d={ICONS[name]} fill="currentColor" />
      </svg>
    </Button>
  );
  return (
    <>
      <div class="row steps" role="group" aria-label="Step">
        {button("First op", atStart, () => stepper.goTo(1))}
        {button("Step back", atStart, () => stepper.by(-1))}
        <span class="num at">
          op {int(cursor)} of {int(total)}
        </span>
        {button("Step forward", atEnd, () => stepper.by(1))}
        {button("Last op", atEnd, () => stepper.goTo(total))}
      </div>
      <Button disabled={atEnd} onClick={() => stepper.nextBreakpoint()}>
        To next breakpoint
      </Button>
    </>
  );
}
