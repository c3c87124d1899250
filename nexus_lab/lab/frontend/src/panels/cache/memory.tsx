/** Sequence slots and the arena behind snapshots, block staging and scratch. */
import { numbers } from "../../canvas/walk";
import { bytes, int, percent } from "../../format";
import type { CachePart } from "../../protocol";
import { Box } from "../../ui";

/** Tokens that a full cell stands for: the power of two that holds the longest sequence. */
export function fullCell(slots: CachePart["slots"]): number {
  const most = Math.max(1, ...slots.map((slot) => slot.tokens));
  return Math.max(256, 2 ** Math.ceil(Math.log2(most)));
}

function Slots({ part }: { part: CachePart }) {
  const full = fullCell(part.slots);
  const bySeq = new Map(part.slots.map((slot) => [slot.seq, slot]));
  return (
    <div>
      <div class="row small under">
        <b>L0 sequence slots</b>
        <span class="muted">
          {part.slots.length} of {part.n_slots} in use; a full cell is {int(full)} tokens
        </span>
      </div>
      <div class="slots" role="list" aria-label="Sequence slots">
        {numbers(0, part.n_slots).map((seq) => {
          const slot = bySeq.get(seq);
          const height = slot ? Math.max(8, (100 * slot.tokens) / full) : 0;
          const words = slot ? `${slot.label}, ${int(slot.tokens)} tokens, ${slot.kind}` : "free";
          return (
            <div
              key={seq}
              role="listitem"
              class={`slot ${slot ? `used ${slot.kind}` : ""}`}
              style={`--h:${height}%`}
              title={`slot ${seq}: ${words}`}
            >
              <span>{seq}</span>
              <span class="sr">{words}</span>
            </div>
          );
        })}
      </div>
      {part.slots.length > 0 && (
        <div class="small muted over">
          {part.slots.slice(0, 8).map((slot) => `${slot.seq} ${slot.label} ${int(slot.tokens)}`).join("; ")}
          {part.slots.length > 8 ? `; ${part.slots.length - 8} more.` : "."}
        </div>
      )}
    </div>
  );
}

function Arena({ arena }: { arena: CachePart["arena"] }) {
  const share = (value: number) => `${arena.total > 0 ? Math.min(100, (100 * value) / arena.total) : 0}%`;
  const rounding = Math.max(0, arena.given_out - arena.asked_for);
  const counters = Object.entries(arena.counters);
  return (
    <div>
      <div class="row small under">
        <b>Buddy arena</b>
        <span class="muted">
          {bytes(arena.given_out)} of {bytes(arena.total)} given out, {bytes(arena.asked_for)} asked for
        </span>
      </div>
      <div class="arena" role="img" aria-label={`${bytes(arena.given_out)} of ${bytes(arena.total)} given out`}>
        {arena.asked_for > 0 && (
          <div class="pat-A" style={{ width: share(arena.asked_for) }} title={`asked for: ${bytes(arena.asked_for)}`} />
        )}
        {rounding > 0 && <div style={{ width: share(rounding) }} title={`rounding: ${bytes(rounding)}`} />}
        <div class="free">{bytes(Math.max(0, arena.total - arena.given_out))} free</div>
      </div>
      <div class="row small muted over legend">
        <span class="lg" style="--c:var(--nl-op-append)">
          <i class="pat-A" />
          asked for
        </span>
        <span class="lg">
          <i />
          rounding to blocks
        </span>
        {counters.map(([name, value]) => (
          <span key={name} class="num">
            {name.replace(/_/g, " ")} {int(value)}
          </span>
        ))}
      </div>
    </div>
  );
}

export function Memory({ part }: { part: CachePart }) {
  const share = part.n_ctx > 0 ? percent(part.cells_used / part.n_ctx) : "";
  return (
    <Box
      title="Memory"
      note={
        <span class="num">
          cells {int(part.cells_used)} of {int(part.n_ctx)} in use{share && ` (${share})`}
        </span>
      }
    >
      <div class="stack close">
        <Slots part={part} />
        <Arena arena={part.arena} />
      </div>
    </Box>
  );
}
