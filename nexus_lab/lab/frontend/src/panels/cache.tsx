/** Cache panel: where in the program we stand, what each token is, what the op did, and forks. */
import { useSignalEffect, type Signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { takeKey, walk } from "../canvas/walk";
import type { Client } from "../client";
import { int } from "../format";
import type { CachePart } from "../protocol";
import { Box, Drawn, Empty, Problem } from "../ui";
import { Breakpoints, OpDetail } from "./cache/detail";
import { centreFor } from "./cache/centre";
import { Fork } from "./cache/fork";
import { Memory } from "./cache/memory";
import { openStepper, type Stepper } from "./cache/stepper";
import { OpTimeline } from "./cache/timeline";
import { TokenBox } from "./cache/tokens";
import { openTokens, type TokenSource } from "./cache/tokens_source";
import { StepButtons } from "./cache/toolbar";
import { opSpoken } from "./cache/words";

/** What the kernel draws: title, method, name. */
const DRAWINGS = [
  ["Op tree", "view", "tree"],
  ["Where the rows are", "view", "residency"],
  ["Restore", "view", "restore"],
  ["Policy: knobs and exact cost", "study", "policy"],
  ["Pareto front of policies", "study", "front"],
  ["Attention by role and age", "study", "attention"],
] as const;

function takesKeys(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, select, textarea, [role=slider], [role=radiogroup]") !== null;
}

function Program({ part, stepper }: { part: CachePart; stepper: Stepper }) {
  const cursor = stepper.shown.value;
  const total = part.ops.length;
  const note = (
    <>
      {part.run ? `run ${part.run}` : ""}
      <span class="opt">
        {part.run ? ", " : ""}policy {part.policy}
      </span>
      {cursor < total && <span class="tag past">looking back: live is op {int(total)}</span>}
    </>
  );
  return (
    <Box
      title="Cache program"
      class="program"
      note={note}
      tools={
        <StepButtons stepper={stepper} cursor={cursor} total={total} />
      }
    >
      <Problem fault={stepper.problem.value} />
      <OpTimeline ops={part.ops} cursor={cursor} onPick={stepper.goTo} />
    </Box>
  );
}

/** Moves the window to what the op touched, once its tokens are here, and speaks the op. */
function useFollow(client: Client, stepper: Stepper, source: TokenSource, centre: Signal<number>) {
  const followed = useRef<string | null>(null);
  useSignalEffect(() => {
    const part = client.told.cache.value;
    const states = source.states.value;
    const cursor = stepper.shown.value;
    const op = part?.ops[cursor - 1];
    if (!part || !op || states?.revision !== part.revision || part.cursor !== cursor) return;
    const key = `${part.run} ${op.state_id} ${cursor}`;
    if (followed.current === key) return;
    const first = followed.current === null;
    followed.current = key;
    const next = centreFor(part.ops, cursor, states.states);
    if (next !== null) centre.value = next;
    if (!first) client.say(opSpoken(op));
  });
}

export function CachePanel({ client }: { client: Client }) {
  const part = client.told.cache.value;
  const stepper = useMemo(() => openStepper(client), [client]);
  const source = useMemo(() => openTokens(client), [client]);
  useEffect(
    () => () => {
      stepper.close();
      source.close();
    },
    [stepper, source],
  );
  const centre = client.keep("cache.centre", 0);
  useFollow(client, stepper, source, centre);
  if (!part) return <Empty title="Waiting for the kernel" />;
  if (part.ops.length === 0) {
    return (
      <Empty title="No cache program yet">
        What the agent's turns append, splice, repair or drop stands here.
      </Empty>
    );
  }
  const cursor = stepper.shown.value;
  const op = part.ops[cursor - 1];
  const onKeyDown = (event: KeyboardEvent) => {
    const next = walk(event.key, stepper.shown.peek() - 1, part.ops.length);
    if (next === null || takesKeys(event.target) || event.altKey || event.ctrlKey || event.metaKey) return;
    takeKey(event);
    stepper.goTo(next + 1);
  };
  return (
    <div class="stack cache" onKeyDown={onKeyDown}>
      <Program part={part} stepper={stepper} />
      <TokenBox client={client} part={part} source={source} centre={centre} />
      <div class="cols cache3">
        <div class="stack">
          {op && <OpDetail op={op} />}
          <Breakpoints client={client} part={part} />
        </div>
        <Memory part={part} />
        <Fork client={client} part={part} at={cursor} />
      </div>
      <div class="cols drawings">
        {DRAWINGS.map(([title, method, name]) => (
          <Box key={name} title={title} class={`d-${name}`}>
            <Drawn client={client} method={`cache.${method}`} name={name} version={part.drawn} />
          </Box>
        ))}
      </div>
    </div>
  );
}
