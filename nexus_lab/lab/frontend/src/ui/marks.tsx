import type { ComponentChildren } from "preact";
import type { OpKind } from "../protocol";
import { fixed, int, NONE } from "../format";

export const OP_LETTERS: Record<OpKind, string> = { append: "A", splice: "S", repair: "R", drop: "D", repos: "P" };
export const OP_WORDS: Record<OpKind, string> = {
  append: "Append",
  splice: "Splice",
  repair: "Repair",
  drop: "Drop",
  repos: "Repos",
};

/** A bar with its number; `full` is the value of a whole bar. */
export function ScoreBar({ value, digits = 3, full = 1 }: { value: number | null; digits?: number; full?: number }) {
  if (value === null) return <span class="muted">{NONE}</span>;
  const width = `${100 * Math.min(1, Math.max(0, value / full))}%`;
  return (
    <div class="sb">
      <div class="tr">
        <i style={{ width }} />
      </div>
      <span class="num">{fixed(value, digits)}</span>
    </div>
  );
}

/** Pattern, colour and word of an op kind or a token state. */
export function Legend({ kind, children }: { kind: OpKind; children: ComponentChildren }) {
  return (
    <span class="lg" style={`--c:var(--nl-op-${kind})`}>
      <i class={`pat-${OP_LETTERS[kind]} ${kind === "drop" ? "dash" : ""}`} />
      {children}
    </span>
  );
}

export function Meter({ label, value, max }: { label: string; value: number; max: number }) {
  return (
    <meter class="meter" min={0} max={max || 1} value={value} aria-label={label}>
      {int(value)} of {int(max)}
    </meter>
  );
}

/** How far a job is; a total of null draws the part that is known: its number. */
export function Progress({ label, done, total }: { label: string; done: number; total: number | null }) {
  const share = total ? Math.min(1, done / total) : null;
  return (
    <span
      class="progress"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total ?? undefined}
      aria-valuenow={total ? done : undefined}
    >
      <i style={{ width: share === null ? "100%" : `${100 * share}%` }} class={share === null ? "open" : ""} />
    </span>
  );
}

/** JSON as text, keys in their order. */
export function JsonText({ value, wrap }: { value: unknown; wrap?: boolean }) {
  return <pre class={`code ${wrap ? "wrap" : ""}`}>{JSON.stringify(value, null, 2)}</pre>;
}
