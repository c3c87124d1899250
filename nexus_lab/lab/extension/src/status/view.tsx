/** What the side panel shows; texts of users and tools come in as text nodes only. */
import * as React from "react";
import type { BarPart } from "../../../frontend/src/protocol";
import { count, number } from "../format";
import { useTheme } from "../theme";
import type { LastDecision, Situation } from "./protocol";

export function StatusView({ situation, ask }: { situation: Situation; ask: () => void }): React.JSX.Element {
  return (
    <section className="nl nl-status" data-theme={useTheme()} aria-label="Workbench status">
      <header>
        <h2>nexus_lab</h2>
        {"notebook" in situation && <p className="nl-muted">{situation.notebook}</p>}
      </header>
      <Body situation={situation} ask={ask} />
    </section>
  );
}

function Body({ situation, ask }: { situation: Situation; ask: () => void }): React.JSX.Element {
  switch (situation.kind) {
    case "no-notebook":
      return <Empty title="No notebook is active">The panel follows the notebook that you work in.</Empty>;
    case "no-kernel":
      return <Empty title="No kernel">Choose a kernel for the notebook.</Empty>;
    case "connecting":
      return <Empty title="Asking the kernel">It answers as soon as it can.</Empty>;
    case "not-loaded":
      return (
        <Empty title="No workbench here yet">
          Run a cell that makes one, such as <code>nl.Workbench()</code>.
          <button type="button" onClick={ask}>
            Ask the kernel
          </button>
        </Empty>
      );
    case "following":
      return situation.status.bar === null ? (
        <Empty title="The workbench was closed">Make another one, and the panel follows it.</Empty>
      ) : (
        <Followed bar={situation.status.bar} decision={situation.status.decision} />
      );
  }
}

function Empty({ title, children }: { title: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <div className="nl-empty">
      <b>{title}</b>
      <p>{children}</p>
    </div>
  );
}

function Followed({ bar, decision }: { bar: BarPart; decision: LastDecision | null }): React.JSX.Element {
  return (
    <dl>
      <dt>Model</dt>
      <dd>
        {bar.model ?? "none loaded"} {bar.quantisation !== null && <code>{bar.quantisation}</code>}
      </dd>
      <dt>Context used</dt>
      <dd>
        <meter min={0} max={Math.max(bar.context_total, 1)} value={bar.context_used} aria-label="Context used" />
        <span className="nl-num">
          {count(bar.context_used)} of {count(bar.context_total)} tokens
        </span>
      </dd>
      <dt>Engine</dt>
      <dd role="status">
        {bar.engine}
        {bar.holder !== null && `: ${bar.holder}`}
      </dd>
      {bar.progress !== null && (
        <>
          <dt>Progress</dt>
          <dd>
            {bar.progress.label}{" "}
            <span className="nl-num">
              {count(bar.progress.done)}
              {bar.progress.total !== null && ` of ${count(bar.progress.total)}`}
            </span>
          </dd>
        </>
      )}
      <dt>Last decision</dt>
      <dd>{decision === null ? "none yet" : <Decision decision={decision} />}</dd>
      {bar.notice !== null && (
        <>
          <dt>Notice</dt>
          <dd>{bar.notice.text}</dd>
        </>
      )}
    </dl>
  );
}

const WORDS: Record<LastDecision["decision"], string> = {
  auto: "auto",
  escalated: "escalated",
  escalation_unavailable: "under τ, no cross-encoder",
  no_tool: "no tool fits",
};

function Decision({ decision }: { decision: LastDecision }): React.JSX.Element {
  return (
    <>
      <code>{decision.tool ?? "no tool"}</code> <span className="nl-muted">{WORDS[decision.decision]}</span>
      <br />
      <span className="nl-num">
        margin {number(decision.margin, 4)}, τ {number(decision.tau, 4)}
      </span>
      <br />
      <q>{decision.request}</q>
    </>
  );
}
