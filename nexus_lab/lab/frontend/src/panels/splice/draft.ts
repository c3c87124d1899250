/** The settings that Run sends: what the user set, on top of the last run and what the model's profile says. */
import type { Signal } from "@preact/signals";
import { curveProblem, type CurveConstants } from "../../canvas/curve";
import type { Client } from "../../client";
import type { SplicePart, SpliceSettings } from "../../protocol";

export type BudgetKind = "calibrated" | "curve";

export interface Draft {
  tool?: string;
  n_past?: number;
  repair?: SpliceSettings["repair"];
  budgetKind?: BudgetKind;
  k?: number;
  measure?: boolean;
  attention?: boolean;
}

export interface BudgetChoice {
  /** Fraction of the block; null where none is known. */
  budget: number | null;
  /** "calibrated" where it was measured for this depth, "profile" where the profile says it for all. */
  word: "calibrated" | "profile";
  why: string | null;
}

type Calibrated = NonNullable<SplicePart["calibrated"]>;

/** Measured budget at a depth: the larger one of the measured depths around it; null outside of them. */
export function calibratedBudget(calibrated: Calibrated, nPast: number): number | null {
  const { depths } = calibrated;
  const below = depths.filter((cell) => cell.n_past <= nPast).at(-1);
  const above = depths.find((cell) => cell.n_past >= nPast);
  if (!below || !above || below.budget === null || above.budget === null) return null;
  return Math.max(below.budget, above.budget);
}

export function budgetChoice(part: SplicePart, repair: string, nPast: number, profile: number | null): BudgetChoice {
  const { calibrated } = part;
  if (!calibrated) return { budget: profile, word: "profile", why: profile === null ? "not calibrated" : null };
  if (calibrated.repair !== repair) {
    return { budget: profile, word: "profile", why: `calibrated for ${calibrated.repair}, not for ${repair}` };
  }
  const budget = calibratedBudget(calibrated, nPast);
  if (budget !== null) return { budget, word: "calibrated", why: null };
  const why = `no measured budget stays under ${calibrated.epsilon} nats at this depth`;
  return { budget: profile, word: "profile", why };
}

export interface Plan {
  settings: SpliceSettings;
  budgetKind: BudgetKind;
  choice: BudgetChoice;
  constants: CurveConstants;
  /** Why it cannot be run like this. */
  problem: string | null;
  tokens: number | null;
}

function firstTool(part: SplicePart): string {
  return (part.tools.find((tool) => tool.compiled) ?? part.tools[0])?.tool ?? "";
}

/** Everything that follows from the draft, the part and the live cache. */
export function planOf(client: Pick<Client, "told">, part: SplicePart, draft: Draft): Plan {
  const last = part.settings ?? part.run?.settings ?? null;
  const depth = client.told.cache.value?.counts.next_position ?? 0;
  const nPast = draft.n_past ?? last?.n_past ?? depth;
  const repair = draft.repair ?? last?.repair ?? "leading";
  const k = draft.k ?? last?.k ?? part.constants.k;
  const profile = client.told.agent.value?.settings.repair_budget ?? null;
  const choice = budgetChoice(part, repair, nPast, profile);
  const wanted = draft.budgetKind ?? (last && last.budget === null ? "curve" : "calibrated");
  const budgetKind = choice.budget === null ? "curve" : wanted;
  const constants = { k, m: part.constants.m, rBase: part.constants.r_base };
  const tool = draft.tool ?? last?.tool ?? firstTool(part);
  const settings: SpliceSettings = {
    tool,
    n_past: nPast,
    repair,
    budget: budgetKind === "calibrated" ? choice.budget : null,
    k,
    measure: draft.measure ?? last?.measure ?? true,
    attention: draft.attention ?? last?.attention ?? false,
  };
  const problem = tool === "" ? "There is no tool to splice: load a registry." : curveProblem(constants);
  const tokens = part.tools.find((row) => row.tool === tool)?.tokens ?? null;
  return { settings, budgetKind, choice, constants, problem, tokens };
}

/** Whether the results that are shown are of other settings than those that are set now. */
export function differs(a: SpliceSettings, b: SpliceSettings): boolean {
  return (Object.keys(a) as (keyof SpliceSettings)[]).some((key) => a[key] !== b[key]);
}

export function keptDraft(client: Client): Signal<Draft> {
  return client.keep<Draft>("splice.draft", {});
}

