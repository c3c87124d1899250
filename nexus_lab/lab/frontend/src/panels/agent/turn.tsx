/** One turn: request and answer, and opened, its spans, its call and what came back. */
import type { Client } from "../../client";
import { fixed, int, ms } from "../../format";
import type { AgentPart, Status, TurnCard } from "../../protocol";
import { DeclineNote, Problem, Progress, StatusMark } from "../../ui";
import { Approval } from "./approval";
import { Spans } from "./spans";

const STATES: Record<TurnCard["state"], [Status, string]> = {
  running: ["none", "running"],
  waiting: ["warn", "approve?"],
  called: ["none", ""],
  abstained: ["none", "abstained"],
  refused: ["warn", "refused"],
  failed: ["bad", "failed"],
  cancelled: ["warn", "stopped"],
};

function Meta({ turn }: { turn: TurnCard }) {
  const [status, word] = STATES[turn.state];
  return (
    <div class="meta num">
      {turn.total_ms !== null && <div>{ms(turn.total_ms)}</div>}
      {word && <StatusMark status={status}>{word}</StatusMark>}
      {turn.result_is_error && <div><StatusMark status="bad">tool failed</StatusMark></div>}
      {turn.splice?.declined && <div>splice declined</div>}
    </div>
  );
}

function RunningPart({ client }: { client: Client }) {
  const progress = client.told.bar.value?.progress;
  if (!progress) return null;
  return (
    <div class="running row small">
      <b>{progress.label}</b>
      <Progress label={progress.label} done={progress.done} total={progress.total} />
      <span class="num muted">
        {int(progress.done)}
        {progress.total !== null && ` of ${int(progress.total)}`}
      </span>
    </div>
  );
}

function Call({ turn }: { turn: TurnCard }) {
  const { tool, server, call, result } = turn;
  if (!tool || !(turn.arguments || call)) return null;
  return (
    <div class="call stack tight">
      <div class="small">
        <b>Call</b> <span class="mono">{tool}</span> {server && <span class="muted">on {server}</span>}
      </div>
      <pre class="code wrap" tabIndex={0} aria-label="Arguments">
        {turn.arguments ? JSON.stringify(turn.arguments, null, 2) : call}
      </pre>
      <ul class="small muted">
        {Object.entries(turn.grounds).map(([name, where]) => (
          <li key={name}>
            <span class="mono">{name}</span> {where}
          </li>
        ))}
      </ul>
      {result !== null && (
        <>
          <div class="small">
            <b>Result</b> {turn.result_is_error && <StatusMark status="bad">the tool reports an error</StatusMark>}
          </div>
          <pre class="code wrap" tabIndex={0} aria-label="Result">{result}</pre>
          {turn.problem && (
            <StatusMark status="warn" wrap>
              The tool had run before the turn ended; what it did stays done.
            </StatusMark>
          )}
        </>
      )}
    </div>
  );
}

export function Turn({ client, turn, approval, open, onToggle }: {
  client: Client;
  turn: TurnCard;
  approval: AgentPart["approval"];
  open: boolean;
  onToggle: (open: boolean) => void;
}) {
  const live = turn.state === "running" || turn.state === "waiting";
  const wanted = turn.state === "refused" || turn.state === "cancelled";
  const { splice } = turn;
  return (
    <details class={`turn ${live ? "on" : ""}`} open={open} onToggle={(event) => onToggle(event.currentTarget.open)}>
      <summary>
        <span class="n num">{turn.number}</span>
        <div class="anywhere">
          <div class="q">
            {turn.marked.length ? turn.marked.map(([text, names]) => (names ? <mark title={names}>{text}</mark> : text)) : turn.request}
          </div>
          {turn.answer && <div class="a">{turn.answer}</div>}
          {turn.cut_at !== null && (
            <StatusMark status="warn" wrap>
              cut at {int(turn.cut_at)} tokens, the limit of an answer
            </StatusMark>
          )}
          {!open && turn.problem && <StatusMark status={wanted ? "warn" : "bad"} wrap>{turn.problem.message}</StatusMark>}
        </div>
        <Meta turn={turn} />
      </summary>
      {open && (
        <div class="spans">
          <Spans spans={turn.spans} label={`Spans of turn ${turn.number}`} />
          {turn.state === "running" && <RunningPart client={client} />}
          <Problem fault={turn.problem} status={wanted ? "warn" : "bad"} />
          {splice?.declined && <DeclineNote what="splice" decline={splice.declined} />}
          {splice && splice.dkl !== null && (
            <p class="small muted num">
              D<sub>KL</sub> of the splice {fixed(splice.dkl, 4)} nats
              {splice.noise_floor !== null && ` (floor ${fixed(splice.noise_floor, 4)})`}, {splice.path}
            </p>
          )}
          {turn.state !== "waiting" && <Call turn={turn} />}
        </div>
      )}
      {open && approval?.turn === turn.number && <Approval key={approval.id} client={client} request={approval} />}
    </details>
  );
}
