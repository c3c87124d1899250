/** The ops of the program as a row of cards; only those in view are in the document. */
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { layoutCards, scrollToCard, visibleCards } from "../../canvas/timeline";
import type { OpCell } from "../../protocol";
import { OP_LETTERS, OP_WORDS, useWidth } from "../../ui";
import { opSize, stopWords } from "./words";

const LEAST_CARD = 107;
const GAP = 3;

function OpCard({ op, current, future, left, width, onPick }: {
  op: OpCell;
  current: boolean;
  future: boolean;
  left: number;
  width: number;
  onPick: () => void;
}) {
  const letter = OP_LETTERS[op.kind];
  const stops = stopWords(op);
  return (
    <button
      type="button"
      class={`op ${future ? "future" : ""}`}
      role="option"
      aria-selected={current}
      aria-current={current ? "step" : undefined}
      tabIndex={current ? 0 : -1}
      style={`--c:var(--nl-op-${op.kind});left:${left}px;width:${width}px`}
      title={`${OP_WORDS[op.kind]}: ${op.note}${stops ? `; breakpoint: ${stops}` : ""}`}
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
            {op.index} {OP_WORDS[op.kind]}
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
  const [ref, width] = useWidth<HTMLDivElement>(1100);
  const scroller = ref as { current: HTMLDivElement | null };
  const [scroll, setScroll] = useState(0);
  const row = layoutCards(ops.length, width, LEAST_CARD);
  const holdsFocus = useRef(false);

  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box || cursor === 0) return;
    const next = scrollToCard(cursor - 1, row, box.scrollLeft, width);
    if (next !== box.scrollLeft) box.scrollLeft = next;
    setScroll(box.scrollLeft);
    if (holdsFocus.current) box.querySelector<HTMLElement>('[aria-current="step"]')?.focus({ preventScroll: true });
  }, [cursor, width, ops.length]);

  const range = visibleCards(ops.length, row, scroll, width);
  const indices = Array.from({ length: range.stop - range.first }, (_, offset) => range.first + offset);
  // The current card stays in the document wherever the row is scrolled to: it may hold the focus.
  const current = cursor - 1;
  if (current >= 0 && current < ops.length && (current < range.first || current >= range.stop)) indices.push(current);
  return (
    <div
      class="tl"
      ref={ref}
      role="listbox"
      aria-label="Ops"
      aria-orientation="horizontal"
      onScroll={(event) => setScroll(event.currentTarget.scrollLeft)}
      onFocusCapture={() => {
        holdsFocus.current = true;
      }}
      onBlurCapture={() => {
        holdsFocus.current = false;
      }}
    >
      <div class="tl-in" style={{ width: `${row.total - GAP}px` }}>
        {indices.map((index) => {
          const op = ops[index];
          return op ? (
            <OpCard
              key={index}
              op={op}
              current={index === current}
              future={index >= cursor}
              left={index * row.step}
              width={row.step - GAP}
              onPick={() => onPick(index + 1)}
            />
          ) : null;
        })}
      </div>
    </div>
  );
}
