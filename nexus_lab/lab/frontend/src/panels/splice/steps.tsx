/** The steps of a splice as cards, a frame of drift behind each. */
import { takeKey, walk } from "../../canvas/walk";
import { ms } from "../../format";
import type { SpliceRun } from "../../protocol";
import { CardRow } from "../../ui/card_row";

export function StepCards({ steps, step, onStep }: {
  steps: SpliceRun["steps"];
  step: number;
  onStep: (step: number) => void;
}) {
  const card = (index: number, style: string) => {
    const { name, detail, ms: time } = steps[index] as SpliceRun["steps"][number];
    return (
      <button
        key={index}
        type="button"
        class="sub"
        tabIndex={index === step ? 0 : -1}
        aria-current={index === step ? "step" : undefined}
        style={style}
        title={`${name}: ${detail}`}
        onClick={() => onStep(index)}
      >
        <span>
          {index + 1} {name}
        </span>
        <span class="tiny muted">{detail || "\u00a0"}</span>
        <span class="tiny num">{ms(time)}</span>
      </button>
    );
  };
  return (
    <CardRow
      class="subs"
      role="group"
      aria-label="Steps of the splice"
      count={steps.length}
      current={step}
      least={88}
      gap={2}
      card={card}
      onKeyDown={(event) => {
        const next = walk(event.key, step, steps.length);
        if (next === null) return;
        takeKey(event);
        onStep(next);
      }}
    />
  );
}
