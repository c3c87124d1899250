/** Which tool fits this request: the decision, its candidates, and the threshold tau. */
import { useEffect } from "preact/hooks";
import type { Client } from "../client";
import { fixed, NONE } from "../format";
import type { DecisionRow, RoutingPart } from "../protocol";
import { Box, Check, Empty, StatusMark, Table } from "../ui";
import { CandidatesBox, DecisionBox, GATE_WORDS } from "./routing/decision";
import { GateBox } from "./routing/gate";
import { RequestBox } from "./routing/request";

function Mark({ mark }: { mark: DecisionRow["mark"] }) {
  if (mark === null) return <span class="muted" title="not marked">{NONE}</span>;
  return (
    <StatusMark status={mark === "right" ? "ok" : "bad"} title={`marked ${mark}`}>
      <span class="sr">{mark}</span>
    </StatusMark>
  );
}

function DecisionsBox({ client, part, shown }: { client: Client; part: RoutingPart; shown: DecisionRow | null }) {
  const follow = client.keep("routing.follow", true);
  const chosen = client.keep<string | null>("routing.chosen", null);
  const run = client.told.bar.value?.run;
  return (
    <Box
      title="Decisions"
      note={run ? `live, run ${run}` : undefined}
      tools={
        <Check small checked={follow.value} onCheck={(checked) => (follow.value = checked)}>
          follow
        </Check>
      }
      flush
    >
      {part.decisions.length === 0 ? (
        <Empty title="No decision yet" tight>
          Each turn of the agent leaves one here, and so does Route.
        </Empty>
      ) : (
        <Table
          label="Decisions, newest first"
          rows={part.decisions}
          rowKey={(row) => row.id}
          selected={new Set(shown ? [shown.id] : [])}
          height={360}
          onSelect={(row, index) => {
            chosen.value = row.id;
            if (index > 0) follow.value = false;
          }}
          columns={[
            { head: "Turn", class: "num", cell: (row) => (row.source === "turn" ? row.turn ?? NONE : "box") },
            { head: "Request", class: "clipped req", cell: (row) => <span title={row.request}>{row.request}</span> },
            { head: "Margin", right: true, cell: (row) => fixed(row.margin, 4) },
            { head: "Gate", class: "nowrap", cell: (row) => (row.decision === "no_tool" ? NONE : GATE_WORDS[row.decision]) },
            { head: "Tool", class: (row) => (row.tool ? "mono tool" : "muted"), cell: (row) => <span title={row.tool ?? undefined}>{row.tool ?? "abstained"}</span> },
            { head: "Mark", cell: (row) => <Mark mark={row.mark} /> },
          ]}
        />
      )}
    </Box>
  );
}

export function RoutingPanel({ client }: { client: Client }) {
  const part = client.told.routing.value;
  const follow = client.keep("routing.follow", true);
  const chosen = client.keep<string | null>("routing.chosen", null);
  const draftTau = client.keep<number | null>("routing.tau", null);
  const draftK = client.keep<number | null>("routing.k", null);
  // A draft that has been applied is one no longer: the part then says what holds.
  useEffect(() => {
    if (draftTau.peek() === part?.tau) draftTau.value = null;
    if (draftK.peek() === part?.top_k) draftK.value = null;
  }, [part?.tau, part?.top_k]);
  if (!part) return null;

  const newest = part.decisions[0] ?? null;
  const shown = follow.value ? newest : part.decisions.find(({ id }) => id === chosen.value) ?? newest;
  const draft = {
    tau: draftTau.value ?? part.tau,
    setTau: (tau: number) => (draftTau.value = tau),
    topK: draftK.value ?? part.top_k,
  };
  return (
    <div class="cols route">
      <div class="stack">
        <RequestBox
          client={client}
          part={part}
          topK={draftK}
          onDecision={(decision) => {
            follow.value = true;
            chosen.value = decision.id;
            client.say(`${GATE_WORDS[decision.decision]}: ${decision.tool ?? "no tool fits"}. ${decision.reason}`);
          }}
        />
        {shown ? (
          <>
            <DecisionBox client={client} decision={shown} run={client.told.bar.value?.run ?? null} />
            <CandidatesBox decision={shown} weight={part.lexical_weight} />
          </>
        ) : (
          <Box title="Decision">
            <Empty title="Nothing was routed yet">Type a request and choose Route.</Empty>
          </Box>
        )}
      </div>
      <div class="stack">
        <GateBox client={client} part={part} decision={shown} draft={draft} />
        <DecisionsBox client={client} part={part} shown={shown} />
      </div>
    </div>
  );
}
