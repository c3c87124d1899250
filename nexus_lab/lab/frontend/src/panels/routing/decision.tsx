/** One decision: the sentence with its numbers, the marks, and the candidates behind it. */
import type { Signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { Client } from "../../client";
import { fixed, ms, msNumber, NONE } from "../../format";
import type { CandidateRow, DecisionRow } from "../../protocol";
import { Box, Button, Empty, Problem, ScoreBar, Select, StatusMark, Table, useAction, type Action } from "../../ui";

export const GATE_WORDS: Record<DecisionRow["decision"], string> = {
  auto: "auto",
  escalated: "escalated",
  escalation_unavailable: "not escalated",
  no_tool: "abstained",
};

const NO_TOOL = " none";

/** "41.9 ms: embed 3.1, scan 0.009, rest 0.4". */
export function timesLine(times: Record<string, number>): string {
  const stages = Object.entries(times).sort((a, b) => b[1] - a[1]);
  const total = stages.reduce((sum, [, value]) => sum + value, 0);
  const shown = stages.slice(0, 4);
  const rest = total - shown.reduce((sum, [, value]) => sum + value, 0);
  const parts = shown.map(([stage, value]) => `${stage} ${msNumber(value)}`);
  if (stages.length > shown.length) parts.push(`rest ${msNumber(rest)}`);
  return `${ms(total)}: ${parts.join(", ")}`;
}

function Marks({ decision, wrong, mark, unmark }: {
  decision: DecisionRow;
  wrong: Signal<string | null>;
  mark: Action<unknown>;
  unmark: Action<unknown>;
}) {
  const busy = mark.busy || unmark.busy;
  const asking = wrong.value === decision.id;
  return (
    <div class="row" role="group" aria-label="Mark this decision">
      <Button
        pressed={decision.mark === "right"}
        disabled={busy}
        onClick={() => {
          wrong.value = null;
          void mark.run({ id: decision.id, mark: "right" });
        }}
      >
        <StatusMark status="ok" />
        Right
      </Button>
      <Button
        pressed={decision.mark === "wrong"}
        disabled={busy}
        aria-expanded={asking}
        onClick={() => (wrong.value = asking ? null : decision.id)}
      >
        <StatusMark status="bad" />
        Wrong…
      </Button>
      {decision.mark && (
        <Button quiet disabled={busy} onClick={() => void unmark.run({ id: decision.id })}>
          Undo
        </Button>
      )}
    </div>
  );
}

function RightTool({ client, decision, wrong, mark }: { client: Client; decision: DecisionRow; wrong: Signal<string | null>; mark: Action<unknown> }) {
  const listed = decision.candidates.map(({ tool }) => tool).filter((tool) => tool !== decision.tool);
  const others = (client.told.registry.value?.tools ?? [])
    .map(({ name }) => name)
    .filter((name) => name !== decision.tool && !listed.includes(name));
  const [tool, setTool] = useState(decision.right_tool ?? listed[0] ?? NO_TOOL);
  const options = [
    ...listed.map((name) => ({ value: name, label: name })),
    { value: NO_TOOL, label: "None of these" },
    ...others.map((name) => ({ value: name, label: name })),
  ];
  const keep = async () => {
    const right = tool === NO_TOOL ? null : tool;
    if ((await mark.run({ id: decision.id, mark: "wrong", right_tool: right })) === null) return;
    wrong.value = null;
    client.say(right ? `Kept as an example of ${right}.` : "Marked wrong: no tool fits.");
  };
  return (
    <div class="note small">
      <div class="row">
        <label class="c">
          Right tool <Select class="right-tool" value={tool} options={options} onPick={setTool} />
        </label>
        <Button primary disabled={mark.busy} onClick={() => void keep()}>
          {tool === NO_TOOL ? "Mark wrong" : "Keep as example"}
        </Button>
        <Button quiet onClick={() => (wrong.value = null)}>Cancel</Button>
      </div>
      <p class="muted next">
        {tool === NO_TOOL
          ? "Nothing is stored as an example."
          : "It is stored with that tool for the next decisions."}
      </p>
    </div>
  );
}

export function DecisionBox({ client, decision, run }: { client: Client; decision: DecisionRow; run: string | null }) {
  const wrong = client.keep<string | null>("routing.wrong", null);
  const mark = useAction(client, "routing.mark");
  const unmark = useAction(client, "routing.unmark");
  const [first, second] = decision.candidates;
  const shownScore = (row: CandidateRow | undefined) =>
    row ? (row.cross_encoder !== null ? `p = ${fixed(row.cross_encoder, 3)}` : `stage 1 ${fixed(row.score, 4)}`) : NONE;
  const unsure = decision.decision === "escalation_unavailable";
  const from = decision.source === "turn" ? `turn ${decision.turn ?? NONE}${run ? `, run ${run}` : ""}` : "request box";
  return (
    <Box title="Decision" note={from} tools={<span class="small num">{timesLine(decision.times_ms)}</span>}>
      <div class="row verdict">
        <span class="tag">{GATE_WORDS[decision.decision]}</span>
        <b class={decision.tool ? "mono chosen anywhere" : "chosen"}>{decision.tool ?? "no tool fits"}</b>
        {decision.tool && <span class="num">{shownScore(first)}</span>}
        {second && (
          <span class="muted anywhere">
            next <span class="num">{second.cross_encoder !== null ? fixed(second.cross_encoder, 3) : fixed(second.score, 4)}</span>{" "}
            <span class="mono">{second.tool}</span>
          </span>
        )}
        <span class="grow" />
        <Marks decision={decision} wrong={wrong} mark={mark} unmark={unmark} />
      </div>
      <p class="small anywhere sentence">
        {unsure ? <StatusMark status="warn" wrap>{decision.reason}</StatusMark> : decision.reason}
        {decision.fit !== null && decision.threshold !== null && decision.decision !== "no_tool" && (
          <span class="muted">
            {" "}Fit <span class="num">{fixed(decision.fit, 3)}</span>; abstains under{" "}
            <span class="num">{fixed(decision.threshold, 3)}</span>.
          </span>
        )}
      </p>
      {decision.mark === "wrong" && wrong.value !== decision.id && (
        <p class="small next">
          <StatusMark status="bad" wrap>
            Marked wrong{decision.right_tool ? `; the right tool is ${decision.right_tool}` : "; no tool fits"}.
          </StatusMark>
        </p>
      )}
      {wrong.value === decision.id && (
        <RightTool key={decision.id} client={client} decision={decision} wrong={wrong} mark={mark} />
      )}
      <Problem fault={mark.fault ?? unmark.fault} />
    </Box>
  );
}

interface Ranked extends CandidateRow {
  first: number;
  final: number;
}

/** In stage-1 order, each with its final place. */
export function ranked(candidates: readonly CandidateRow[]): Ranked[] {
  return candidates
    .map((row, index) => ({ ...row, first: 0, final: index + 1 }))
    .sort((a, b) => b.score - a.score || a.final - b.final)
    .map((row, index) => ({ ...row, first: index + 1 }));
}

function Moved({ row }: { row: Ranked }) {
  if (row.final < row.first) return <span title="moved up">▲</span>;
  if (row.final > row.first) return <span class="muted" title="moved down">▼</span>;
  return <span class="muted">–</span>;
}

/** What stage 1 adds to cosine and words: a tool of the server that the conversation called last. */
export function gain(row: CandidateRow, weight: number): string {
  if (row.dense === null || row.lexical === null) return "";
  const more = row.score - row.dense - weight * row.lexical;
  return more > 0.0005 ? ` with ${fixed(more, 3)} for the server named or called last` : "";
}

export function CandidatesBox({ decision, weight }: { decision: DecisionRow; weight: number }) {
  const rows = ranked(decision.candidates);
  const asked = rows.some((row) => row.cross_encoder !== null);
  return (
    <Box title="Candidates" note={rows.length === 0 ? undefined : `stage 1 = dense + ${weight} lexical; the cross-encoder ${asked ? "read them again" : "was not asked"}`} flush>
      {rows.length === 0 ? (
        <Empty title="No candidates are kept" tight>
          Of an earlier session the mark and the margin remain.
        </Empty>
      ) : (
      <Table
        label="Candidates"
        rows={rows}
        rowKey={(row) => row.tool}
        selected={new Set(decision.tool ? [decision.tool] : [])}
        columns={[
          { head: "#", right: true, cell: (row) => row.first },
          { head: "Tool", class: "mono tool", cell: (row) => <><span title={row.tool}>{row.tool}</span>{row.view && <div class="muted tiny matched">{row.view}{row.matched && `: ${row.matched}`}</div>}</> },
          { head: <>Dense <span class="u">cosine</span></>, cell: (row) => <ScoreBar value={row.dense} /> },
          { head: <>Lexical <span class="u">BM25, 0–1</span></>, cell: (row) => <ScoreBar value={row.lexical} /> },
          { head: "Stage 1", right: true, cell: (row) => <>{fixed(row.score, 4)}<div class="muted tiny">{gain(row, weight)}</div></> },
          ...(asked
            ? [
                { head: <>Cross-encoder <span class="u">p</span></>, cell: (row: Ranked) => <ScoreBar value={row.cross_encoder} /> },
                { head: "Final", right: true, cell: (row: Ranked) => <>{row.final} <Moved row={row} /></> },
              ]
            : []),
        ]}
        tail={
          decision.threshold !== null && (
            <tr key="none" class={decision.decision === "no_tool" ? "sel" : undefined}>
              <td />
              <td class="muted">None of these</td>
              <td colSpan={asked ? 5 : 3} class="muted">
                abstains under a fit of <span class="num">{fixed(decision.threshold, 3)}</span>; the best is{" "}
                <span class="num">{fixed(decision.fit, 3)}</span>
              </td>
            </tr>
          )
        }
      />
      )}
    </Box>
  );
}
