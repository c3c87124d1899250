/** Where the window of tokens goes when the cursor comes to an op. */
import type { OpCell } from "../../protocol";

const DROPPED = 3;
const REPAIRED = 2;
/** Tokens of what an op wrote that stand before the middle of the window. */
const LEAD = 8;

function firstOf(states: Uint8Array, state: number, from: number): number | null {
  const index = states.indexOf(state, from);
  return index < 0 ? null : index;
}

/** Token to put in the middle: the start of what the op wrote, repaired or dropped; null to stay. */
export function centreFor(ops: readonly OpCell[], cursor: number, states: Uint8Array): number | null {
  const op = ops[cursor - 1];
  if (!op) return null;
  const before = ops[cursor - 2]?.logical ?? 0;
  if (op.kind === "append" || op.kind === "splice") return Math.min(states.length - 1, before + LEAD);
  if (op.kind === "drop") return firstOf(states, DROPPED, 0);
  if (op.kind === "repos") return null;
  const spliceAt = ops.slice(0, cursor - 1).map((other) => other.kind).lastIndexOf("splice");
  const from = ops[spliceAt - 1]?.logical ?? 0;
  return firstOf(states, REPAIRED, from);
}
