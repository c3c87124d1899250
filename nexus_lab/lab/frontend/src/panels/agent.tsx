/** The agent: what waits for the user, the answers, and the settings of the next turn. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { StopButton } from "../bar";
import type { Client } from "../client";
import { count, fixed, int, ms, NONE } from "../format";
import type { AgentPart, Settings, TurnCard } from "../protocol";
import { Box, Button, Empty, Problem, useAction } from "../ui";
import { Approval } from "./agent/approval";
import { SettingsBox } from "./agent/settings";
import { Turn } from "./agent/turn";

function placeholder(part: AgentPart): string {
  if (!part.ready) return part.missing ?? "Nothing can be asked yet.";
  const last = part.turns[part.turns.length - 1];
  if (last?.state === "waiting" || last?.state === "running") return `Turn ${last.number} is ${last.state}. A message is queued behind it.`;
  return "Ask for something that one of the tools can do";
}

function MessageBox({ client, part }: { client: Client; part: AgentPart }) {
  const text = client.keep("agent.message", "");
  const ask = useAction(client, "agent.ask");
  const box = useRef<HTMLTextAreaElement>(null);
  const empty = text.value.trim() === "";
  const send = async () => {
    const message = text.value.trim();
    if (message === "" || !part.ready) return;
    text.value = "";
    box.current?.focus();
    // A message that was not taken goes back into the box, unless the next one is being written.
    if ((await ask.run({ text: message })) === null && text.value === "") text.value = message;
  };
  return (
    <Box>
      <div class="row top message">
        <label class="f grow">
          <span>Message</span>
          <textarea
            ref={box}
            rows={2}
            value={text.value}
            placeholder={placeholder(part)}
            onInput={(event) => (text.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
              event.preventDefault();
              event.stopPropagation();
              void send();
            }}
          />
        </label>
        <div class="stack tight">
          <Button primary disabled={empty || !part.ready} onClick={() => void send()}>
            Send <kbd>Ctrl ↵</kbd>
          </Button>
          <StopButton client={client} />
        </div>
      </div>
      {!part.ready && part.missing && <p class="small muted missing">{part.missing}</p>}
      <Problem fault={ask.fault} />
    </Box>
  );
}

function ranWith(settings: Record<string, unknown>, tau: number | null): string {
  const { k, tau: own, top_k: best, schema_mode: mode } = settings as Partial<Settings>;
  const used = own ?? tau;
  const words = [
    k && `K = ${k}`,
    used !== null && `τ = ${fixed(used, 4)}${own == null ? " (calibrated)" : ""}`,
    best && `k = ${best}`,
    mode,
  ];
  return words.filter(Boolean).join(", ") || NONE;
}

function FactsBox({ client, turn }: { client: Client; turn: TurnCard | undefined }) {
  const bar = client.told.bar.value;
  const fresh = useAction(client, "agent.new_conversation");
  const decision = client.told.routing.value?.decisions.find((row) => row.turn === turn?.number);
  return (
    <Box
      title={turn ? `Turn ${turn.number}` : "Conversation"}
      note={bar?.run ? `run ${bar.run}` : undefined}
      tools={
        <Button quiet disabled={fresh.busy || !turn} onClick={() => void fresh.run()}>
          New conversation
        </Button>
      }
    >
      {turn ? (
        <dl class="kv">
          <dt>First argument token</dt>
          <dd class="num">
            <b>{ms(turn.ttft_ms)}</b>
          </dd>
          <dt>Prefill</dt>
          <dd class="num">
            {ms(turn.prefill_ms)}
          </dd>
          <dt>Prompt</dt>
          <dd class="num">
            {count(turn.prompt_tokens, "token")}
          </dd>
          <dt>Ran with</dt>
          <dd>{ranWith(turn.settings, decision?.tau ?? null)}</dd>
          {bar && (
            <>
              <dt>Context</dt>
              <dd class="num">
                {int(bar.context_used)} of {int(bar.context_total)} tokens
              </dd>
            </>
          )}
        </dl>
      ) : (
        <Empty title="No turn yet" tight>
          What a turn took is told here.
        </Empty>
      )}
      <Problem fault={fresh.fault} />
    </Box>
  );
}

function QueueBox({ client, part }: { client: Client; part: AgentPart }) {
  const drop = useAction(client, "agent.unqueue");
  return (
    <Box title="Queue" note={part.queue.length ? int(part.queue.length) : undefined} flush={part.queue.length > 0}>
      {part.queue.length === 0 ? (
        <Empty title="Nothing is waiting" tight>
          A message sent during a turn is kept here.
        </Empty>
      ) : (
        <ol class="queue">
          {part.queue.map((text, index) => (
            <li key={`${index} ${text}`}>
              <span class="anywhere">{text}</span>
              <Button quiet aria-label={`Take back: ${text}`} disabled={drop.busy} onClick={() => void drop.run({ index })}>
                Take back
              </Button>
            </li>
          ))}
        </ol>
      )}
      <Problem fault={drop.fault} />
    </Box>
  );
}

/** Turns by their place in the session, from 0; what was seen once is not asked for again. */
type Places = Map<number, TurnCard>;

/** Turns that the part leaves out: those already seen, and a way to the ones before them. */
function EarlierTurns({ client, before, places, draw }: {
  client: Client;
  before: number;
  places: Places;
  draw: (turn: TurnCard) => JSX.Element;
}) {
  const fetch = useAction<{ turns: TurnCard[] }>(client, "agent.turns");
  const [, redraw] = useState(0);
  let from = before;
  while (places.has(from - 1)) from -= 1;
  const more = async () => {
    const start = Math.max(0, from - 24);
    const reply = await fetch.run({ start, stop: from });
    reply?.turns.forEach((turn, index) => places.set(start + index, turn));
    redraw((n) => n + 1);
  };
  const known = Array.from({ length: before - from }, (_, index) => places.get(from + index)!);
  return (
    <>
      {from > 0 && (
        <div class="row">
          <Button quiet disabled={fetch.busy} onClick={() => void more()}>
            {count(from, "earlier turn")}
          </Button>
          <Problem fault={fetch.fault} />
        </div>
      )}
      {known.map(draw)}
    </>
  );
}

/** Speaks how a turn ended that was seen running. */
function useTold(client: Client, turn: TurnCard | undefined): void {
  const seen = useRef<number | null>(null);
  useEffect(() => {
    if (!turn) return;
    if (turn.state === "running" || turn.state === "waiting") seen.current = turn.number;
    else if (seen.current === turn.number) {
      seen.current = null;
      const words: Partial<Record<TurnCard["state"], string>> = { called: `called ${turn.tool ?? "a tool"}`, cancelled: "stopped" };
      const what = words[turn.state] ?? turn.state;
      client.say(`Turn ${turn.number}: ${what}, ${ms(turn.total_ms)}.`);
    }
  }, [turn?.number, turn?.state]);
}

export function AgentPanel({ client }: { client: Client }) {
  const part = client.told.agent.value;
  const opened = client.keep<Readonly<Record<number, boolean>>>("agent.open", {});
  const places = client.keep<Places>("agent.places", new Map()).peek();
  const before = part?.turns_before ?? 0;
  useEffect(() => part?.turns.forEach((turn, index) => places.set(before + index, turn)), [part?.turns]);
  useTold(client, part?.turns[part.turns.length - 1]);
  if (!part) return null;
  const last = part.turns[part.turns.length - 1];
  // What waits for the user stays near the bar: of the turns that nobody opened, the last alone is open.
  const isOpen = (turn: TurnCard) => opened.value[turn.number] ?? turn.number === last?.number;
  const draw = (turn: TurnCard) => (
    <Turn
      key={turn.number}
      client={client}
      turn={turn}
      approval={part.approval}
      open={isOpen(turn)}
      onToggle={(open) => {
        if (open !== isOpen(turn)) opened.value = { ...opened.value, [turn.number]: open };
      }}
    />
  );
  const homeless = part.approval && !part.turns.some(({ number }) => number === part.approval?.turn);
  return (
    <div class="cols agt">
      <div class="stack close">
        {part.turns.length === 0 && (
          <Box>
            <Empty title={part.ready ? "Nothing was asked yet" : "The agent is not ready"}>
              {part.ready ? "A turn routes the message, fills in the call, and runs the tool." : part.missing}
            </Empty>
          </Box>
        )}
        {before > 0 && <EarlierTurns client={client} before={before} places={places} draw={draw} />}
        {part.turns.map(draw)}
        {homeless && part.approval && <Approval key={part.approval.id} client={client} request={part.approval} />}
        <MessageBox client={client} part={part} />
      </div>
      <div class="stack">
        <FactsBox client={client} turn={last} />
        <SettingsBox client={client} part={part} />
        <QueueBox client={client} part={part} />
      </div>
    </div>
  );
}
