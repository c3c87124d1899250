/** The tokens of the window, one cell each: piece, state, position in the cache, logical index. */
import { STATE_NAMES, STATE_OPS } from "../../canvas/patterns";
import { numbers } from "../../canvas/walk";
import { int, NONE } from "../../format";
import { OP_LETTERS } from "../../ui";
import type { TokenStates } from "./tokens_source";
import { visibleText } from "../../ui/visible";

const LETTERS = { computed: "C", spliced: "S", repaired: "R", dropped: "D" } as const;
const CELL = 45;

/** Tokens that fit into a row. */
export function windowSize(width: number): number {
  return Math.max(12, Math.floor((width + 2) / CELL));
}

/** First token of a window around `centre`, within the tokens there are. */
export function windowStart(centre: number, size: number, tokens: number): number {
  return Math.max(0, Math.min(tokens - size, centre - Math.floor(size / 2)));
}

/** Messages and blocks that the window touches. */
export function windowLabels(segments: TokenStates["segments"], start: number, stop: number): string {
  return segments
    .filter((segment) => segment.start < stop && segment.stop > start)
    .map((segment) => segment.label)
    .join(" | ");
}

export function TokenRow({ tokens, pieces, start, stop }: {
  tokens: TokenStates;
  pieces: ReadonlyMap<number, string>;
  start: number;
  stop: number;
}) {
  return (
    <div class="toks" role="list" aria-label={`Tokens ${int(start)} to ${int(stop - 1)}`}>
      {numbers(start, stop).map((index) => {
        const name = STATE_NAMES[tokens.states[index] ?? 0] ?? "computed";
        const op = STATE_OPS[name];
        const position = tokens.positions[index] ?? -1;
        const piece = pieces.get(index);
        return (
          <div
            key={index}
            role="listitem"
            class={`tk ${LETTERS[name]}`}
            style={`--c:var(--nl-op-${op})`}
            title={`${name}${piece === undefined ? "" : `: ${JSON.stringify(piece)}`}`}
          >
            <div class="g">{piece === undefined ? "" : visibleText(piece)}</div>
            <div class={`b pat-${OP_LETTERS[op]}`} />
            <div class="l">{LETTERS[name]}</div>
            <div class="p">{position < 0 ? NONE : position}</div>
            <div class="q">{index}</div>
          </div>
        );
      })}
    </div>
  );
}
