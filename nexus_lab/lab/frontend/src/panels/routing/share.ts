/** What a threshold would do to the decisions that are on record. */
import type { RoutingPart } from "../../protocol";

type Margins = RoutingPart["margins"];

export interface Side {
  decisions: number;
  marked: number;
  right: number;
  /** Mean over the decisions as they ran; null for none. */
  meanMs: number | null;
}

export interface Split {
  escalates: Side;
  resolves: Side;
  /** Share of decisions that would escalate; null for none. */
  share: number | null;
}

function side(rows: Margins): Side {
  const marked = rows.filter(({ mark }) => mark !== null);
  return {
    decisions: rows.length,
    marked: marked.length,
    right: marked.filter(({ mark }) => mark === "right").length,
    meanMs: rows.length ? rows.reduce((sum, { ms }) => sum + ms, 0) / rows.length : null,
  };
}

/** A margin under tau escalates, one that reaches it resolves by itself. */
export function splitAt(margins: Margins, tau: number): Split {
  const escalates = side(margins.filter(({ margin }) => margin < tau));
  const resolves = side(margins.filter(({ margin }) => margin >= tau));
  return { escalates, resolves, share: margins.length ? escalates.decisions / margins.length : null };
}

export const TAU_STEP = 0.0002;
export const TAU_PAGE = 0.002;

export function roundTau(tau: number, max: number): number {
  return Math.min(max, Math.max(0, Math.round(tau * 1e4) / 1e4));
}

/** Where a key of the tau handle leads; null for other keys. */
export function tauAfterKey(tau: number, key: string, max: number): number | null {
  const delta = {
    ArrowRight: TAU_STEP,
    ArrowUp: TAU_STEP,
    ArrowLeft: -TAU_STEP,
    ArrowDown: -TAU_STEP,
    PageUp: TAU_PAGE,
    PageDown: -TAU_PAGE,
    Home: -Infinity,
    End: Infinity,
  }[key];
  return delta === undefined ? null : roundTau(tau + delta, max);
}

const SPANS = [0.006, 0.012, 0.03, 0.06, 0.12, 0.3, 0.6, 1.2];

/** The end of the axis: room for nineteen of twenty margins, for tau and for the margin that is looked at. */
export function axisEnd(margins: Margins, ...also: (number | null)[]): number {
  const sorted = margins.map(({ margin }) => margin).sort((a, b) => a - b);
  const most = sorted[Math.floor(0.95 * (sorted.length - 1))] ?? 0;
  const tau = Math.max(0, ...also.filter((value): value is number => value !== null));
  const wanted = Math.max(most, 1.3 * tau, 0.0001);
  return SPANS.find((span) => span >= wanted) ?? Math.ceil(wanted);
}
