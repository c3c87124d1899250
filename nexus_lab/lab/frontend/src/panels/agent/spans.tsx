/** The spans of a turn as bars on one time axis. */
import { useState } from "preact/hooks";
import { int, ms, NONE } from "../../format";
import type { SpanRow, Status } from "../../protocol";
import { Button, StatusMark } from "../../ui";

const MOST = 200;
const STAGES: Record<string, string> = {
  embeddings: "embed",
  retrieval: "route",
  rerank: "rerank",
  arguments: "fill",
  generate: "respond",
  cache_op: "cache",
  fidelity: "measure",
};
const MARKS: Record<SpanRow["status"], Status> = { running: "none", ok: "none", error: "bad", declined: "warn", cancelled: "warn" };

export interface Nested extends SpanRow {
  depth: number;
}

/** Depth first in the order in which they started; the turn itself, the only root, is left out. */
export function nested(spans: readonly SpanRow[]): Nested[] {
  const known = new Set(spans.map(({ id }) => id));
  const children = new Map<number | null, SpanRow[]>();
  for (const span of spans) {
    const parent = span.parent !== null && known.has(span.parent) ? span.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), span]);
  }
  const rows: Nested[] = [];
  const visit = (parent: number | null, depth: number) => {
    const own = [...(children.get(parent) ?? [])].sort((a, b) => a.start_ms - b.start_ms || a.id - b.id);
    for (const span of own) {
      const isTurn = parent === null && span.kind === "turn";
      if (!isTurn) rows.push({ ...span, depth });
      visit(span.id, isTurn ? depth : depth + 1);
    }
  };
  visit(null, 0);
  return rows;
}

/** The stage in a word, and what else the span says. */
export function spanWords({ kind, name, detail }: SpanRow): [string, string] {
  const stage = STAGES[kind] ?? kind.replaceAll("_", " ");
  return [stage, [name === stage ? "" : name, detail].filter(Boolean).join(", ")];
}

/** Stages, and what went wrong inside of them; the rest is shown when asked for. */
export function important(rows: readonly Nested[]): Nested[] {
  return rows.filter(({ depth, status }) => depth === 0 || (status !== "ok" && status !== "running"));
}

function look(span: SpanRow): string {
  if (span.ms === null) return "open";
  if (span.status === "declined" || span.status === "error") return "";
  const kind = `${span.kind} ${span.name}`;
  if (/repair/.test(kind)) return "pat-R ed";
  if (/splice/.test(kind)) return "pat-S ed";
  if (/repos|approval/.test(kind) || span.kind === "cache") return "pat-P ed";
  return "";
}

export function Spans({ spans, label }: { spans: readonly SpanRow[]; label: string }) {
  const [all, setAll] = useState(false);
  const rows = nested(spans);
  if (rows.length === 0) return <p class="small muted">No span yet.</p>;
  const begin = Math.min(...spans.map(({ start_ms }) => start_ms));
  const running = spans.some((span) => span.ms === null);
  const end = Math.max(...spans.map((span) => span.start_ms + (span.ms ?? 0)));
  const total = Math.max(0.001, (end - begin) * (running ? 1.22 : 1));
  const stages = important(rows);
  const shown = (all ? rows : stages).slice(0, MOST);
  return (
    <>
      <div role="list" aria-label={label}>
        {shown.map((span) => {
          const left = (100 * (span.start_ms - begin)) / total;
          const width = span.ms === null ? 100 - left : (100 * span.ms) / total;
          const status = MARKS[span.status];
          const [stage, words] = spanWords(span);
          return (
            <div class="span" role="listitem" key={span.id}>
              <b class="clip" style={span.depth ? { paddingLeft: 10 * Math.min(4, span.depth), fontWeight: 400 } : undefined} title={span.name}>
                {stage}
              </b>
              <div class="lane">
                <i class={look(span)} style={{ left: `${left}%`, width: `${Math.min(width, 100 - left)}%` }} />
              </div>
              <span class={`x ${status === "none" ? "muted" : ""}`} title={words}>
                {status === "none" ? words : <StatusMark status={status}>{words || span.status}</StatusMark>}
              </span>
              <span class="d num">{span.ms === null ? NONE : ms(span.ms)}</span>
            </div>
          );
        })}
      </div>
      {rows.length > stages.length && (
        <div>
          <Button quiet class="tog" aria-expanded={all} onClick={() => setAll(!all)}>
            {all ? "▾ stages only" : `▸ all ${int(rows.length)} spans`}
          </Button>
          {all && rows.length > MOST && <span class="small muted">the first {int(MOST)} are shown</span>}
        </div>
      )}
    </>
  );
}
