/** The ops of the program as a row of cards. */
import type { OpCell } from "../../protocol";
import { OP_LETTERS, OP_WORDS } from "../../ui";
import { CardRow } from "../../ui/card_row";
import { opSize, stopWords } from "./words";

function OpCard({ op, current, future, style, onPick }: {
  op: OpCell;
  current: boolean;
  future: boolean;
  style: string;
  onPick: () => void;
}) {
  const letter = OP_LETTERS[op.kind];
  const word = OP_WORDS[op.kind];
  const stops = stopWords(op);
  return (
    <button
      type="button"
      class={`op ${future ? "future" : ""}`}
      role="option"
      aria-selected={current}
      aria-current={current ? "step" : undefined}
      tabIndex={current ? 0 : -1}
      style={`--c:var(--nl-op-${op.kind});${style}`}
      title={`${word}: ${op.note}${stops ? `; breakpoint: ${stops}` : ""}`}
      onClick={onPick}
    >
      <span class="cap">
        <span class="let">{letter}</span>
        <span class={`pat pat-${letter}`} />
      </span>
      {stops && (
        <span class="bp">
          <span aria-hidden="true">!</span>
          <span class="sr">breakpoint: {stops}</span>
        </span>
      )}
      <span class="tx">
        <span>
          <b>
            {op.index} {word}
          </b>
        </span>
        <span class="num small">{opSize(op)}</span>
        <span class="muted tiny">{op.note || "\u00a0"}</span>
      </span>
    </button>
  );
}

export function OpTimeline({ ops, cursor, onPick }: {
  ops: readonly OpCell[];
  cursor: number;
  onPick: (n: number) => void;
}) {
  return (
    <CardRow
      class="tl"
      role="listbox"
      aria-label="Ops"
      count={ops.length}
      current={cursor - 1}
      least={107}
      gap={3}
      card={(index, style) => (
        <OpCard
          key={index}
          op={ops[index] as OpCell}
          current={index === cursor - 1}
          future={index >= cursor}
          style={style}
          onPick={() => onPick(index + 1)}
        />
      )}
    />
  );
}
