/** Two runs side by side: choosing A and B, and the spans that belong together. */
import type { Comparison } from "../../protocol";

export interface Choice {
  a: string | null;
  b: string | null;
}

/** Checking fills A, then B, then replaces B; unchecking empties the place. */
export function choose({ a, b }: Choice, run: string): Choice {
  if (a === run) return { a: b, b: null };
  if (b === run) return { a, b: null };
  return a === null ? { a: run, b } : { a, b: run };
}

export interface Pair {
  turn: number;
  depth: number;
  name: string;
  a_ms: number | null;
  b_ms: number | null;
}

export interface TurnPairs {
  turn: number;
  a_ms: number | null;
  b_ms: number | null;
  pairs: Pair[];
}

function sum(values: readonly (number | null)[]): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((total, value) => total + value, 0) : null;
}

/** Pairs by turn; a lone pair above the others is the turn itself, else the turn is their sum. */
export function byTurn(pairs: Comparison["pairs"]): TurnPairs[] {
  const turns = new Map<number, Pair[]>();
  for (const pair of pairs) turns.set(pair.turn, [...(turns.get(pair.turn) ?? []), pair]);
  return [...turns.entries()]
    .sort(([a], [b]) => a - b)
    .map(([turn, own]) => {
      const least = Math.min(...own.map(({ depth }) => depth));
      const tops = own.filter(({ depth }) => depth === least);
      const head = tops.length === 1 && own.length > 1 ? tops[0] : undefined;
      return {
        turn,
        a_ms: head ? head.a_ms : sum(tops.map(({ a_ms }) => a_ms)),
        b_ms: head ? head.b_ms : sum(tops.map(({ b_ms }) => b_ms)),
        pairs: own.filter((pair) => pair !== head).map((pair) => ({ ...pair, depth: pair.depth - least - (head ? 1 : 0) })),
      };
    });
}

export const NOISE = 0.02;

/** Whether the two differ by more than 2 %, or one of them is missing. */
export function differs({ a_ms, b_ms }: Pick<Pair, "a_ms" | "b_ms">): boolean {
  if (a_ms === null || b_ms === null) return a_ms !== b_ms;
  return Math.abs(b_ms - a_ms) > NOISE * Math.abs(a_ms);
}
