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

/** What was asked for and what it led to, with the profile of the block behind it. */
function Led({ run: { led, profile } }: { run: SpliceRun }) {
  return (
    <div class="small">
      {led.map((line) => (
        <div key={line}>{line}</div>
      ))}
      {profile && (
        <svg class="profile" role="img" aria-label={profile.words} preserveAspectRatio="none" viewBox={`0 0 ${profile.n} 10`}>
          <title>{profile.words}</title>
          <path d={profile.spliced} />
          <path d={profile.recomputed} />
        </svg>
      )}
    </div>
  );
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
      <DeclineNote what="splice" decline={unavailable} />
    );
  }
  if (!run) {
    if (busy) return <Running client={client} />;
    return (
      <Box>
        <Empty title="Nothing spliced yet">
          Choose a block and a depth, then run.
        </Empty>
      </Box>
    );
  }
  if (run.declined) {
    return (
      <>
        <DeclineNote what="splice" decline={run.declined} cost={`${int(run.n_tokens)} tokens, ${ms(run.ttft_ms)}.`} />
        <Led run={run} />
      </>
    );
  }
  const wanted = planOf(client, part, keptDraft(client).value).settings;
  return (
    <>
      {busy && <Running client={client} />}
      {!busy && differs(wanted, run.settings) && (
        <div class="small muted stale">
          Results of {run.led[0]}; the settings have changed since.
        </div>
      )}
      <Led run={run} />
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
