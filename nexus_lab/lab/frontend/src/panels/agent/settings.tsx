/** Settings of the next turn; nothing holds before Apply. */
import { useEffect } from "preact/hooks";
import type { Client } from "../../client";
import { fixed } from "../../format";
import type { AgentPart, Settings } from "../../protocol";
import { Box, Button, Check, Field, NumberField, Problem, Select, useAction } from "../../ui";
import { REPAIRS } from "../splice/draft";

/** "splice(bounded(0.02))" as "spliced block, bounded(0.02) + grammar". */
export function schemaModeWords(mode: string): string {
  if (mode === "signature") return "signature + grammar";
  if (mode === "full") return "full schema + grammar";
  const how = /^splice\((.*)\)$/.exec(mode)?.[1];
  return how ? `spliced block, ${how} + grammar` : mode;
}

const ASK: { value: Settings["ask_before"]; label: string }[] = [
  { value: "writes", label: "every tool that is not read-only" },
  { value: "every", label: "every tool" },
  { value: "never", label: "never (recorded in the run)" },
];
const NAMES: Record<keyof Settings, string> = {
  schema_mode: "schema mode",
  policy: "cache policy",
  keep_responses: "keep",
  repos: "repos",
  repair: "repair",
  repair_budget: "budget",
  k: "K",
  tau: "τ",
  top_k: "k",
  shadow: "shadow",
  temperature: "temperature",
  max_tokens: "call tokens",
  answer_tokens: "answer tokens",
  max_calls: "calls at most",
  turn_seconds: "seconds at most",
  ask_before: "ask before",
};

export type Draft = Partial<Settings>;

/** What a draft would change, by name. */
export function changesOf(settings: Settings, draft: Draft): Draft {
  const names = Object.keys(draft) as (keyof Settings)[];
  return Object.fromEntries(names.filter((name) => draft[name] !== settings[name]).map((name) => [name, draft[name]]));
}

function shown(name: keyof Settings, value: unknown): string {
  if (name === "tau") return value === null ? "calibrated" : fixed(value as number, 4);
  if (name === "turn_seconds" && value === null) return "unlimited";
  if (name === "repair_budget") return `${fixed(100 * (value as number), 0)} %`;
  if (typeof value === "boolean") return value ? "on" : "off";
  return String(value);
}

export function describe(changes: Draft): string {
  const names = Object.keys(changes) as (keyof Settings)[];
  return names.map((name) => `${NAMES[name]} ${shown(name, changes[name])}`).join(", ");
}

interface FormProps {
  now: Settings;
  set: (change: Draft) => void;
  part: AgentPart;
  /** What "calibrated" stands for, once that is known. */
  calibrated: number | null;
}

function MainFields({ now, set, part, calibrated }: FormProps) {
  const modes = part.schema_modes.map((mode) => ({ value: mode, label: schemaModeWords(mode) }));
  return (
    <>
      <Field label="Schema mode">
        <Select value={now.schema_mode} options={modes} onPick={(schema_mode) => set({ schema_mode })} />
      </Field>
      <Field label="Cache policy">
        <Select value={now.policy} options={part.policies} onPick={(policy) => set({ policy })} />
      </Field>
      <div class="cols half">
        <Field label="Keep responses">
          <NumberField value={now.keep_responses} min={0} max={64} step={1} onValue={(n) => set({ keep_responses: Math.round(n) })} />
        </Field>
        <Field label="Repair budget, %">
          <NumberField value={100 * now.repair_budget} min={0} max={100} step={1} onValue={(n) => set({ repair_budget: n / 100 })} />
        </Field>
        <Field label="K">
          <NumberField value={now.k} min={2} max={64} step={1} onValue={(k) => set({ k })} />
        </Field>
        <Field label={now.tau === null ? "τ, calibrated" : "τ"}>
          <NumberField value={now.tau} min={0} step={0.0002} digits={4} placeholder={fixed(calibrated, 4)} onValue={(tau) => set({ tau })} empty={() => set({ tau: null })} />
        </Field>
      </div>
      <Field label="Ask before">
        <Select value={now.ask_before} options={ASK} onPick={(ask_before) => set({ ask_before })} />
      </Field>
    </>
  );
}

function MoreFields({ now, set }: Pick<FormProps, "now" | "set">) {
  return (
    <details class="more">
      <summary class="small">More</summary>
      <div class="stack close">
        <div class="cols half">
          <Field label="Repair">
            <Select value={now.repair} options={REPAIRS} onPick={(repair) => set({ repair })} />
          </Field>
          <Field label="Candidates k">
            <NumberField value={now.top_k} min={1} max={32} step={1} onValue={(n) => set({ top_k: Math.round(n) })} />
          </Field>
          <Field label="Call, most tokens">
            <NumberField value={now.max_tokens} min={1} step={1} onValue={(n) => set({ max_tokens: Math.round(n) })} />
          </Field>
          <Field label="Answer, most tokens">
            <NumberField value={now.answer_tokens} min={1} step={1} onValue={(n) => set({ answer_tokens: Math.round(n) })} />
          </Field>
          <Field label="Calls, at most">
            <NumberField value={now.max_calls} min={1} step={1} onValue={(n) => set({ max_calls: Math.round(n) })} />
          </Field>
          <Field label="Turn, most seconds">
            <NumberField value={now.turn_seconds} min={0.1} max={86400} step={1} digits={1} placeholder="unlimited" onValue={(turn_seconds) => set({ turn_seconds })} empty={() => set({ turn_seconds: null })} />
          </Field>
          <Field label="Temperature">
            <NumberField value={now.temperature} min={0} max={2} step={0.1} digits={2} onValue={(temperature) => set({ temperature })} />
          </Field>
        </div>
        <Check checked={now.repos} onCheck={(repos) => set({ repos })}>
          re-pack positions after a drop
        </Check>
        <Check checked={now.shadow} onCheck={(shadow) => set({ shadow })}>
          <span>
            measure D<sub>KL</sub> of splices <span class="muted">(shadow prefill)</span>
          </span>
        </Check>
      </div>
    </details>
  );
}

export function SettingsBox({ client, part }: { client: Client; part: AgentPart }) {
  const draft = client.keep<Draft>("agent.settings", {});
  const apply = useAction(client, "agent.apply");
  const changes = changesOf(part.settings, draft.value);
  const names = Object.keys(changes);
  const only = names.length === 1 ? describe(changes) : null;
  const now: Settings = { ...part.settings, ...draft.value };
  const set = (change: Draft) => (draft.value = { ...draft.value, ...change });
  // What was applied is no draft any more.
  useEffect(() => {
    draft.value = changesOf(part.settings, draft.peek());
  }, [part.settings]);
  const run = async () => {
    const done = await apply.run({ settings: changes });
    if (done !== null) client.say(`From the next turn: ${describe(changes)}.`);
  };
  return (
    <Box title="Settings" note="from the next turn">
      <div class="stack close">
        <MainFields now={now} set={set} part={part} calibrated={client.told.routing.value?.calibrated ?? null} />
        <MoreFields now={now} set={set} />
        <div class="row">
          <Button disabled={names.length === 0 || apply.busy} onClick={() => void run()}>
            {names.length === 0 ? "Apply" : only ? `Apply ${only}` : `Apply ${names.length} changes`}
          </Button>
          {names.length > 0 && (
            <Button quiet onClick={() => (draft.value = {})}>
              Discard
            </Button>
          )}
          <span class="small muted anywhere">{names.length === 0 ? "nothing changed" : only ? "not applied yet" : describe(changes)}</span>
        </div>
        <Problem fault={apply.fault} />
      </div>
    </Box>
  );
}
