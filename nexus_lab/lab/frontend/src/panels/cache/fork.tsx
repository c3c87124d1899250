/** A new run from the op that is shown, with other settings from there on. */
import { useState } from "preact/hooks";
import { curveProblem } from "../../canvas/curve";
import type { Client } from "../../client";
import { count, int } from "../../format";
import type { CachePart, ForkReply } from "../../protocol";
import { Box, Button, Field, NumberField, Problem, Select, StatusMark, useAction } from "../../ui";
import { REPAIRS } from "../splice/draft";
import { rerunWords } from "./words";

export interface ForkSettings {
  policy: string;
  repair: string;
  k: number;
  tau: number | null;
}

/** Settings of the live run, which a fork starts from. */
export function forkDefaults(client: Client, part: CachePart): ForkSettings {
  const agent = client.told.agent.value?.settings;
  const constants = client.told.splice.value?.constants;
  return {
    policy: part.policies.includes(part.policy) ? part.policy : agent?.policy ?? part.policies[0] ?? part.policy,
    repair: agent?.repair ?? "leading",
    k: agent?.k ?? constants?.k ?? 4,
    tau: agent?.tau ?? client.told.routing.value?.tau ?? null,
  };
}

export function Fork({ client, part, at }: { client: Client; part: CachePart; at: number }) {
  const draft = client.keep<Partial<ForkSettings>>("cache.fork", {});
  const [done, setDone] = useState<string | null>(null);
  const action = useAction<ForkReply>(client, "cache.fork");
  const settings = { ...forkDefaults(client, part), ...draft.value };
  const change = (part: Partial<ForkSettings>) => {
    draft.value = { ...draft.value, ...part };
    setDone(null);
  };
  const problem = curveProblem(settings);
  const fork = async () => {
    const { tau, ...rest } = settings;
    const reply = await action.run({ at, settings: tau === null ? rest : { ...rest, tau } });
    if (!reply) return;
    const again = `${count(reply.rerun_ops, "op")}, ${count(reply.rerun_tokens, "token")} run again`;
    const note = reply.note ? ` ${reply.note}` : "";
    const text = `${reply.run || "The fork"} forked from op ${int(reply.at)}: ${again}.${note}`;
    setDone(text);
    client.say(text);
  };
  return (
    <Box title={`Fork from op ${int(at)}`}>
      <div class="stack close">
        <div class="cols half">
          <Field label="Policy">
            <Select value={settings.policy} options={part.policies} onPick={(policy) => change({ policy })} />
          </Field>
          <Field label="Repair">
            <Select value={settings.repair} options={REPAIRS} onPick={(repair) => change({ repair })} />
          </Field>
          <Field label="K">
            <NumberField value={settings.k} digits={settings.k % 1 ? 2 : 0} step={1} onValue={(k) => change({ k })} />
          </Field>
          <Field label="τ">
            <NumberField value={settings.tau} digits={4} step={0.0002} min={0} onValue={(tau) => change({ tau })} />
          </Field>
        </div>
        {problem && (
          <StatusMark status="bad" wrap>
            {problem}
          </StatusMark>
        )}
        <div class="row">
          <Button primary disabled={action.busy || problem !== null} onClick={() => void fork()}>
            {action.busy ? "Forking" : `Fork as ${part.next_run ?? "a new run"}`}
          </Button>
          <span class="muted small fill">{done ?? rerunWords(part, at)}</span>
        </div>
        <Problem fault={action.fault} />
      </div>
    </Box>
  );
}
