/** First, back, forward, last; where we stand; and on to the next breakpoint. */
import { int } from "../../format";
import { Button } from "../../ui";
import type { Stepper } from "./stepper";

const ICONS = {
  first: "M2 2h2v8H2zM10 2v8L5 6z",
  back: "M9 1v10L3 6z",
  forward: "M3 1v10l6-5z",
  last: "M8 2h2v8H8zM2 2v8l5-4z",
};

function Icon({ name }: { name: keyof typeof ICONS }) {
  return (
    <svg width="12" height="12" aria-hidden="true">
      <path d={ICONS[name]} fill="currentColor" />
    </svg>
  );
}

export function StepButtons({ stepper, cursor, total }: { stepper: Stepper; cursor: number; total: number }) {
  const atStart = cursor <= 1;
  const atEnd = cursor >= total;
  return (
    <>
      <div class="row steps" role="group" aria-label="Step">
        <Button class="icon" aria-label="First op" disabled={atStart} onClick={() => stepper.goTo(1)}>
          <Icon name="first" />
        </Button>
        <Button class="icon" aria-label="Step back" disabled={atStart} onClick={() => stepper.by(-1)}>
          <Icon name="back" />
        </Button>
        <span class="num at">
          op {int(cursor)} of {int(total)}
        </span>
        <Button class="icon" aria-label="Step forward" disabled={atEnd} onClick={() => stepper.by(1)}>
          <Icon name="forward" />
        </Button>
        <Button class="icon" aria-label="Last op" disabled={atEnd} onClick={() => stepper.goTo(total)}>
          <Icon name="last" />
        </Button>
      </div>
      <Button disabled={atEnd} onClick={() => stepper.nextBreakpoint()}>
        To next breakpoint
      </Button>
    </>
  );
}
