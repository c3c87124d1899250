/** Splice panel: try a splice, see what it costs in fidelity and time, and where the drift sits. */
import type { Client } from "../client";
import { int, ms } from "../format";
import type { SplicePart, SpliceRun, SpliceSettings } from "../protocol";
import { Box, DeclineNote, Empty, useAction } from "../ui";
import { ResultCards } from "./splice/cards";
import { differs, keptDraft, planOf } from "./splice/draft";
import { DriftBox } from "./splice/drift";
import { LastSplices } from "./splice/last";
import { NextToken } from "./splice/next_token";
import { SettingsBox } from "./splice/settings";

function NothingSpliced() {
  return (
    <Box title="Per-head drift">
      <Empty title="Nothing was spliced">
        Drift is measured between a spliced and a prefilled path. Both are the same here.
      </Empty>
    </Box>
  );
}

function settingsWords(settings: SpliceSettings): string {
  const budget = settings.budget === null ? `curve, K = ${settings.k}` : `budget ${Math.round(100 * settings.budget)} %`;
  return `${settings.tool} at n_past ${int(settings.n_past)}, ${settings.repair}, ${budget}`;
}

/** What the engine does while a splice runs, over the results of the last one. */
function Running({ client }: { client: Client }) {
  const label = client.told.bar.value?.progress?.label;
  return (
    <div class="small stale" role="status">
      Splicing{label ? `: ${label}` : ""}
    </div>
  );
}

interface ResultsProps {
  client: Client;
  part: SplicePart;
  busy: boolean;
  onRun: (settings: SpliceSettings) => void;
}

function Results({ client, part, busy, onRun }: ResultsProps) {
  const { run, unavailable } = part;
  if (unavailable) {
    return (
      <>
        <DeclineNote what="splice" decline={unavailable} />
        <NothingSpliced />
      </>
    );
  }
  if (!run) {
    if (busy) return <Running client={client} />;
    return (
      <Box>
        <Empty title="Nothing spliced yet">
          Choose a block and a depth, then run. With measure on, the result is compared with a prefill.
        </Empty>
      </Box>
    );
  }
  if (run.declined) {
    return (
      <>
        <DeclineNote what="splice" decline={run.declined} cost={`${int(run.n_tokens)} tokens, ${ms(run.ttft_ms)}.`} />
        <NothingSpliced />
      </>
    );
  }
  const wanted = planOf(client, part, keptDraft(client).value).settings;
  return (
    <>
      {busy && <Running client={client} />}
      {!busy && differs(wanted, run.settings) && (
        <div class="small muted stale">
          Results of {settingsWords(run.settings)}; the settings have changed since.
        </div>
      )}
      <ResultCards run={run} />
      <DriftBox client={client} run={run} busy={busy} onRerun={(change) => onRun({ ...run.settings, ...change })} />
      {run.measured && <NextToken next={run.measured.next} />}
    </>
  );
}

export function SplicePanel({ client }: { client: Client }) {
  const action = useAction<SpliceRun>(client, "splice.run");
  const draft = keptDraft(client);
  const part = client.told.splice.value;
  if (!part) return <Empty title="Waiting for the kernel" />;
  const run = async (settings: SpliceSettings) => {
    draft.value = { ...draft.value, measure: settings.measure, attention: settings.attention };
    const reply = await action.run({ settings });
    if (!reply) return;
    const what = reply.declined ? `Splice declined: ${reply.declined.reason}` : "Spliced";
    client.say(`${what}; first token after ${ms(reply.ttft_ms)}.`);
  };
  return (
    <div class="cols spl">
      <div class="stack left">
        <SettingsBox client={client} part={part} draft={draft} action={action} onRun={(settings) => void run(settings)} />
        <LastSplices part={part} run={client.told.cache.value?.run ?? client.told.bar.value?.run ?? null} />
      </div>
      <div class="stack sres" aria-busy={action.busy}>
        <Results client={client} part={part} busy={action.busy} onRun={(settings) => void run(settings)} />
      </div>
    </div>
  );
}
