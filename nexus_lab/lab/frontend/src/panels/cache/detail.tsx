/** What the current op did, and where breakpoints stop. */
import type { Client } from "../../client";
import type { CachePart, OpCell } from "../../protocol";
import { Box, Check, NumberField, Problem, StatusMark, useAction } from "../../ui";
import { opFacts, opTitle, stopsWhere, stopWords, type StopKind } from "./words";

const DKL = (
  <>
    D<sub>KL</sub>
  </>
);

export function OpDetail({ op }: { op: OpCell }) {
  const stops = stopWords(op);
  return (
    <Box title={opTitle(op)}>
      <dl class="kv">
        {opFacts(op).map((row) => (
          <>
            <dt>{row.name === "D_KL" ? DKL : row.name}</dt>
            <dd class={row.mono ? "mono" : undefined} title={row.whole}>
              {row.text}
            </dd>
          </>
        ))}
        {op.declined && (
          <>
            <dt>Declined</dt>
            <dd>
              <StatusMark status="warn" wrap>
                {op.declined.reason}; {op.declined.instead}
              </StatusMark>
            </dd>
          </>
        )}
        {stops && (
          <>
            <dt>Breakpoint</dt>
            <dd>{stops}</dd>
          </>
        )}
      </dl>
    </Box>
  );
}

export function Breakpoints({ client, part }: { client: Client; part: CachePart }) {
  const action = useAction(client, "cache.set_breakpoints");
  const set = (change: Partial<CachePart["breakpoints"]>) => void action.run({ ...part.breakpoints, ...change });
  const where = (kind: StopKind) => <span class="muted">{stopsWhere(part.ops, kind, part.breakpoints[kind])}</span>;
  const marks = part.breakpoints;
  return (
    <Box title="Breakpoints">
      <div class="stack tight">
        <Check checked={marks.gate} onCheck={(gate) => set({ gate })}>
          <span>gate escalated {where("gate")}</span>
        </Check>
        <Check checked={marks.declined} onCheck={(declined) => set({ declined })}>
          <span>splice declined {where("declined")}</span>
        </Check>
        <div class="row">
          <Check checked={marks.dkl} onCheck={(dkl) => set({ dkl })}>
            <span>{DKL} over ε =</span>
          </Check>
          <NumberField
            aria-label="epsilon, nats"
            value={marks.epsilon}
            digits={3}
            step={0.005}
            min={0}
            width={70}
            onValue={(epsilon) => set({ epsilon })}
          />
          <span>nats {where("dkl")}</span>
        </div>
        <Check checked={marks.failed} onCheck={(failed) => set({ failed })}>
          <span>tool failed {where("failed")}</span>
        </Check>
      </div>
      <Problem fault={action.fault} />
    </Box>
  );
}
