/** The runs of this session: what differs between two of them, and a way out of each. */
import { useMemo, useState } from "preact/hooks";
import type { Client } from "../client";
import { bytes } from "../format";
import type { ExportReply, Redaction, RunRow, SessionPart } from "../protocol";
import { Box, Button, Check, Field, Note, Problem, Select, StatusMark, useAction, useOwnId, useReply } from "../ui";
import { CompareBox } from "./session/compare";
import type { Choice } from "./session/pairs";
import { RunsBox } from "./session/runs";

const REDACTIONS: { value: Redaction; label: string }[] = [
  { value: "all", label: "e-mail, tokens, keys, home paths" },
  { value: "secrets", label: "keys, tokens, passwords" },
  { value: "none", label: "nothing" },
];

function ExportBox({ client, part, run }: { client: Client; part: SessionPart; run: RunRow | null }) {
  const target = client.keep("session.target", part.targets[0]?.target ?? "");
  const contents = client.keep("session.contents", false);
  const redact = client.keep<Redaction>("session.redact", "all");
  const [done, setDone] = useState<ExportReply | null>(null);
  const group = useOwnId();
  const write = useAction<ExportReply>(client, "session.export");
  const told = !contents.value
    ? "without contents: scores, ops, timings"
    : redact.value === "none"
      ? "contents in, as they are"
      : "contents in, redacted";
  const asked = run && target.value ? { run: run.run, target: target.value, contents: contents.value, redact: redact.value } : null;
  const [size] = useReply<{ bytes: number }>(client, "session.estimate", asked, run?.turns);
  const start = async () => {
    if (!asked || write.busy) return;
    setDone(null);
    setDone(await write.run(asked));
  };
  return (
    <Box title={run ? `Export ${run.run}` : "Export"}>
      <div class="stack close">
        <div class="stack tight" role="radiogroup" aria-label="Format">
          {part.targets.map(({ target: name, label, detail }) => (
            <label key={name} class="target">
              <input type="radio" name={group} checked={target.value === name} onChange={() => (target.value = name)} />
              <span>{label}</span>
              <span class="tiny muted">{detail}</span>
            </label>
          ))}
        </div>
        <hr />
        <Check checked={contents.value} onCheck={(on) => (contents.value = on)}>
          Include message contents
        </Check>
        <Field label="Redact, when contents are in">
          <Select value={redact.value} options={REDACTIONS} disabled={!contents.value} onPick={(value) => (redact.value = value)} />
        </Field>
        <div class="row">
          <Button primary disabled={!asked || write.busy} onClick={() => void start()}>
            {write.busy ? "Writing…" : "Export"}
          </Button>
          <span class="small muted">
            {told}
            {size && <span class="num">; about {bytes(size.bytes)}, an estimate</span>}
          </span>
        </div>
        {done?.path && (
          <p class="small anywhere" role="status">
            <StatusMark status="ok">written, {bytes(done.bytes)}</StatusMark>
            <br />
            <code>{done.shown}</code>
          </p>
        )}
        <Problem fault={write.fault} />
      </div>
    </Box>
  );
}

function JournalNote({ journal }: { journal: NonNullable<SessionPart["journal"]> }) {
  const { seconds_since_event: since, gone } = journal;
  const at = useMemo(() => new Date(Date.now() - 1000 * (since ?? 0)).toLocaleTimeString("en-GB"), [journal]);
  if (gone) {
    return (
      <Note status="bad" title="The journal is gone" class="small">
        It was taken away while it is written: what follows is kept nowhere. Start another session.
        <div class="tiny muted mono anywhere">{journal.path}</div>
      </Note>
    );
  }
  return (
    <Note title="Journal is safe" class="small">
      {since === null ? "No event yet." : `Last event at ${at}.`} After a kernel restart, opening this session finds
      everything that had finished.
      <div class="tiny muted mono anywhere">{journal.path}</div>
    </Note>
  );
}

export function SessionPanel({ client }: { client: Client }) {
  const part = client.told.session.value;
  const choice = client.keep<Choice>("session.choice", { a: null, b: null });
  const picked = client.keep<string | null>("session.run", null);
  if (!part) return null;
  const known = (run: string | null) => part.runs.find((row) => row.run === run) ?? null;
  const chosen = known(picked.value) ?? part.runs.find(({ live }) => live) ?? part.runs[0] ?? null;
  const compared = [known(choice.value.a), known(choice.value.b)];
  const version = compared.map((row) => (row ? `${row.turns} ${row.status_text}` : "")).join("|");
  return (
    <div class="stack">
      <RunsBox client={client} part={part} choice={choice} chosen={chosen} />
      <div class="cols cmpg">
        <CompareBox client={client} choice={choice} version={version} />
        <div class="stack">
          <ExportBox client={client} part={part} run={chosen} />
          {part.journal ? (
            <JournalNote journal={part.journal} />
          ) : (
            <Note title="Nothing is recorded" class="small">
              This session has no journal; what is not exported ends with the kernel.
            </Note>
          )}
        </div>
      </div>
    </div>
  );
}
