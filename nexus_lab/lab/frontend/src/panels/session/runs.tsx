/** The runs of the session: filter, choose two to compare, choose one to export or replay. */
import type { Signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { Client } from "../../client";
import { count, fixed, int, NONE } from "../../format";
import type { RunRow, SessionPart, Settings } from "../../protocol";
import { Button, Check, Dialog, Empty, Field, matches, NumberField, Problem, SearchField, Select, StatusMark, Table, TextField, useAction } from "../../ui";
import { schemaModeWords } from "../agent/settings";
import { choose, type Choice } from "./pairs";

/** "30 Nov 10:38"; what is no date is shown as it is. */
export function started(text: string | null): string {
  if (!text) return NONE;
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return text;
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${day} ${date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

function OpenDialog({ client, method, open, onClose }: { client: Client; method: "session.open" | "session.import"; open: boolean; onClose: () => void }) {
  const importing = method === "session.import";
  const path = client.keep(`${method}-path`, "");
  const [text, setText] = useState("");
  const act = useAction(client, method);
  const params = path.value.trim() ? { path: path.value.trim() } : importing && text.trim() ? { text } : null;
  const run = async () => {
    if (params && !act.busy && (await act.run(params)) !== null) onClose();
  };
  return (
    <Dialog
      label={importing ? "Import a transcript" : "Open a bundle"}
      open={open}
      onClose={onClose}
      actions={
        <Button primary disabled={!params || act.busy} onClick={() => void run()}>
          {importing ? "Import" : "Open"}
        </Button>
      }
    >
      <div class="stack close">
        <Field label={importing ? "Path of an OTLP, Chat or transcript file" : "Path of a .nexus bundle or .nexus.json file"}>
          <TextField value={path.value} onValue={(value) => (path.value = value)} onEnter={() => void run()} />
        </Field>
        {importing && (
          <Field label="or its text">
            <textarea class="mono" rows={6} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </Field>
        )}
        {importing && <p class="small muted">What is imported is read-only; replay needs a model.</p>}
        <Problem fault={act.fault} />
      </div>
    </Dialog>
  );
}

function ReplayDialog({ client, run, open, onClose }: { client: Client; run: RunRow; open: boolean; onClose: () => void }) {
  const agent = client.told.agent.value;
  const [changed, setChanged] = useState<Partial<Settings>>({});
  const replay = useAction<{ run: string }>(client, "session.replay");
  const now = agent && { ...agent.settings, ...changed };
  const set = (change: Partial<Settings>) => setChanged({ ...changed, ...change });
  const start = async () => {
    if (replay.busy) return;
    const done = await replay.run({ run: run.run, settings: changed });
    if (!done) return;
    client.say(done.run ? `${run.run} is replayed as ${done.run}.` : `${run.run} was replayed.`);
    onClose();
  };
  return (
    <Dialog
      label={`Replay ${run.run} with`}
      open={open}
      onClose={onClose}
      actions={
        <Button primary disabled={!agent?.ready || replay.busy} onClick={() => void start()}>
          {replay.busy ? "Replaying…" : `Replay ${count(run.turns, "turn")}`}
        </Button>
      }
    >
      {now && agent?.ready ? (
        <div class="stack close">
          <div class="cols half">
            <Field label="Policy">
              <Select value={now.policy} options={agent.policies} onPick={(policy) => set({ policy })} />
            </Field>
            <Field label="Schema mode">
              <Select value={now.schema_mode} options={agent.schema_modes.map((mode) => ({ value: mode, label: schemaModeWords(mode) }))} onPick={(schema_mode) => set({ schema_mode })} />
            </Field>
            <Field label="K">
              <NumberField value={now.k} min={2} max={64} step={1} onValue={(k) => set({ k })} />
            </Field>
            <Field label={now.tau === null ? "τ, calibrated" : "τ"}>
              <NumberField value={now.tau} min={0} step={0.0002} digits={4} onValue={(tau) => set({ tau })} empty={() => set({ tau: null })} />
            </Field>
          </div>
          <p class="small muted">Runs the model again on the requests of {run.run}; the result is a new run, in a new conversation.</p>
          <Problem fault={replay.fault} />
        </div>
      ) : (
        <Empty title="Replay needs a model" tight>
          {agent?.missing ?? "Load one in Models."}
        </Empty>
      )}
    </Dialog>
  );
}

export function RunsBox({ client, part, choice, chosen }: {
  client: Client;
  part: SessionPart;
  choice: Signal<Choice>;
  chosen: RunRow | null;
}) {
  const search = client.keep("session.search", "");
  const picked = client.keep<string | null>("session.run", null);
  const [dialog, setDialog] = useState<"open" | "import" | "replay" | null>(null);
  const rows = part.runs.filter(({ run, model, policy, status_text, note, started: when }) =>
    matches(search.value, [run, model, policy, status_text, note, when]),
  );
  const { a, b } = choice.value;
  const letter = (run: string) => (run === a ? "A" : run === b ? "B" : null);
  const close = () => setDialog(null);
  return (
    <section class="box" aria-label="Runs">
      <div class="hd">
        <h3>Runs</h3>
        <SearchField text={search} class="run-search" label="Filter runs" placeholder="Filter: model, policy, status, tool" />
        <span class="muted small" title={part.folder}>
          {count(part.runs.length, "run")}, {part.name}
        </span>
        <span class="grow" />
        <Button onClick={() => setDialog("open")}>Open bundle…</Button>
        <Button onClick={() => setDialog("import")}>Import transcript…</Button>
        <Button disabled={!chosen} onClick={() => setDialog("replay")}>
          Replay {chosen?.run ?? ""} with…
        </Button>
      </div>
      <div class="bd flush">
        {rows.length === 0 ? (
          <Empty title={part.runs.length ? "No run matches" : "No run yet"}>
            {part.runs.length ? "Clear the filter, or open another bundle." : "The first turn starts one."}
          </Empty>
        ) : (
          <Table
            label="Runs"
            rows={rows}
            rowKey={(row) => row.run}
            selected={new Set([a, b].filter((run): run is string => run !== null))}
            onSelect={(row) => (picked.value = row.run)}
            height={rows.length > 12 ? 340 : undefined}
            columns={[
              {
                head: "Compare",
                cell: (row) => (
                  <Check checked={letter(row.run) !== null} aria-label={`compare ${row.run}`} onCheck={() => (choice.value = choose(choice.value, row.run))}>
                    <b>{letter(row.run)}</b>
                  </Check>
                ),
              },
              { head: "Run", class: "mono nowrap", cell: (row) => (row === chosen ? <b>{row.run}</b> : row.run) },
              { head: "Started", headClass: "opt", class: "num opt", cell: (row) => started(row.started) },
              { head: "Model", class: "anywhere", cell: (row) => row.model ?? "none" },
              { head: "Policy", class: "nowrap", cell: (row) => row.policy ?? NONE },
              { head: "Turns", right: true, headClass: "opt", class: "opt", cell: (row) => int(row.turns) },
              { head: "Status", cell: (row) => <StatusMark status={row.status}>{row.status_text}</StatusMark> },
              { head: <>Worst D<sub>KL</sub> <span class="u">nats</span></>, right: true, cell: (row) => fixed(row.worst_dkl, 4) },
              { head: "Note", class: "muted anywhere", cell: (row) => row.note },
            ]}
          />
        )}
      </div>
      <OpenDialog key="open" client={client} method="session.open" open={dialog === "open"} onClose={close} />
      <OpenDialog key="import" client={client} method="session.import" open={dialog === "import"} onClose={close} />
      {chosen && <ReplayDialog key={`replay ${chosen.run}`} client={client} run={chosen} open={dialog === "replay"} onClose={close} />}
    </section>
  );
}
