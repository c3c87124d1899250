/** What the Cache panel says about an op, in one place. */
import { count, fixed, int, ms } from "../../format";
import type { CachePart, OpCell, OpKind } from "../../protocol";
import { OP_WORDS } from "../../ui";

const SIGNS: Record<OpKind, string> = { append: "+", splice: "+", repair: "", drop: "−", repos: "" };

/** "+196 tokens", "−863 tokens", "108 tokens". */
export function opSize(op: OpCell): string {
  return `${SIGNS[op.kind]}${count(op.tokens, "token")}`;
}

export function opTitle(op: OpCell): string {
  return `Op ${int(op.index)}: ${OP_WORDS[op.kind]}`;
}

/** What the live region says after a step. */
export function opSpoken(op: OpCell): string {
  return `${opTitle(op)}, ${count(op.tokens, "token")}; ${int(op.active)} active, next position ${int(op.next_position)}.`;
}

export type StopKind = OpCell["stops"][number];

export const STOP_WORDS: Record<StopKind, string> = {
  gate: "gate escalated",
  declined: "splice declined",
  dkl: "D_KL over ε",
  failed: "tool failed",
};

/** Why a breakpoint stops at an op, as one phrase. */
export function stopWords(op: OpCell): string {
  return op.stops.map((stop) => STOP_WORDS[stop]).join(", ");
}

/** Where a breakpoint of this kind stops: "op 7, turn 4", "3 ops, first op 4", or "never in this run". */
export function stopsWhere(ops: readonly OpCell[], kind: StopKind, on: boolean): string {
  if (!on) return "off";
  const stops = ops.filter((op) => op.stops.includes(kind));
  const first = stops[0];
  if (!first) return "never in this run";
  const turn = first.turn === null ? "" : `, turn ${first.turn}`;
  return stops.length === 1 ? `op ${int(first.index)}${turn}` : `${stops.length} ops, first op ${int(first.index)}`;
}

export interface DetailRow {
  name: string;
  text: string;
  mono?: boolean;
  /** What was shortened, whole. */
  whole?: string;
}

/** A state's id as it is shown: its beginning tells it apart. */
export function shortId(id: string): string {
  return id.length > 16 ? id.slice(0, 12) : id;
}

/** Facts of an op; what was not measured is left out. */
export function opFacts(op: OpCell): DetailRow[] {
  const parent = op.parent_id ?? "root";
  const rows: DetailRow[] = [
    {
      name: "State",
      text: `${shortId(op.state_id)}, parent ${shortId(parent)}`,
      mono: true,
      whole: `${op.state_id}, parent ${parent}`,
    },
  ];
  if (op.turn !== null) rows.push({ name: "Turn", text: String(op.turn) });
  rows.push({ name: "Tokens", text: int(op.tokens) });
  if (op.note) rows.push({ name: "For", text: op.note });
  if (op.detail && op.detail !== op.note) rows.push({ name: "Detail", text: op.detail });
  if (op.seconds !== null) rows.push({ name: "Time", text: ms(op.seconds * 1000) });
  if (op.dkl !== null) {
    const floor = op.noise_floor === null ? "floor not measured" : `floor ${fixed(op.noise_floor, 4)}`;
    rows.push({ name: "D_KL", text: `${fixed(op.dkl, 4)} nats (${floor})` });
  }
  const after = `${int(op.active)} active, ${int(op.logical)} logical, next ${int(op.next_position)}`;
  return [...rows, { name: "After it", text: after }];
}

/** Ops and tokens that a fork at `at` runs again. */
export function rerunOf(ops: readonly OpCell[], at: number): { ops: number; tokens: number } {
  const behind = ops.slice(at);
  const computed = behind.filter((op) => op.kind !== "drop" && op.kind !== "repos");
  return { ops: behind.length, tokens: computed.reduce((sum, op) => sum + op.tokens, 0) };
}

/** Ops that a fork at `at` shares: a turn whose messages are not all there yet is asked again as a whole. */
export function sharedOps(points: CachePart["fork_points"], at: number): number {
  const [base, ...ends] = points;
  const last = ends.filter(({ said }) => said <= at).at(-1);
  return last ? Math.min(at, last.end) : base?.end ?? at;
}

export function rerunWords({ ops, fork_points }: Pick<CachePart, "ops" | "fork_points">, at: number): string {
  const shared = sharedOps(fork_points, at);
  const again = rerunOf(ops, shared);
  if (again.ops === 0) return "Goes on from here; nothing is run again.";
  const from = shared === at ? "" : `Shares ${count(shared, "op")}: half a turn cannot be asked. `;
  return `${from}Re-runs ${count(again.ops, "op")}, ${count(again.tokens, "token")}.`;
}

/** "1,079 active of 1,942 logical: computed 648, ..." without the leading number. */
export function countWords(counts: CachePart["counts"]): string {
  const { logical, computed, spliced, repaired, dropped } = counts;
  return (
    ` active of ${int(logical)} logical: computed ${int(computed)}, spliced ${int(spliced)}, ` +
    `repaired ${int(repaired)}; dropped ${int(dropped)}`
  );
}
