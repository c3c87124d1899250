/** The settings that Run sends: what the user set, on top of the last run and what the model's profile says. */
import type { Signal } from "@preact/signals";
import { curveProblem, type CurveConstants } from "../../canvas/curve";
import type { Client } from "../../client";
import type { Calibrated, SplicePart, SpliceSettings } from "../../protocol";

export const REPAIRS = [
  "leading",
  "carried",
  { value: "trailing", label: "trailing (paper)" },
  "profile",
  { value: "scattered", label: "scattered (control)" },
  "none",
  "full",
] as const;

export type BudgetKind = "calibrated" | "curve";

export interface Draft extends Partial<SpliceSettings> {
  budgetKind?: BudgetKind;
}

export interface BudgetChoice {
  /** Fraction of the block; null where none is known. */
  budget: number | null;
  /** "calibrated" where it was measured for this depth, "profile" where the profile says it for all. */
  word: "calibrated" | "profile";
  why: string | null;
}

/** Measured budget at a depth: the larger one of the measured depths around it; null outside of them. */
export function calibratedBudget(calibrated: Calibrated, nPast: number): number | null {
  const { depths } = calibrated;
  const below = depths.filter((cell) => cell.n_past <= nPast).at(-1);
  const above = depths.find((cell) => cell.n_past >= nPast);
  if (!below || !above || below.budget === null || above.budget === null) return null;
  return Math.max(below.budget, above.budget);
}

export function budgetChoice(
  calibrated: Calibrated | null | undefined,
  repair: string,
  nPast: number,
  profile: number | null,
): BudgetChoice {
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
  return (part.tools.find((tool) => tool.compiled.length) ?? part.tools[0])?.tool ?? "";
}

/** Everything that follows from the draft, the part and the live cache. */
export function planOf(client: Pick<Client, "told">, part: SplicePart, draft: Draft): Plan {
  const { budgetKind: picked, ...set } = draft;
  const last = part.settings ?? part.run?.settings;
  const base: SpliceSettings = {
    tool: firstTool(part),
    n_past: client.told.cache.value?.counts.next_position ?? 0,
    context: "system",
    contract: "fixed",
    epsilon: 0.02,
    repair: "leading",
    budget: null,
    k: part.constants.k,
    measure: true,
    attention: false,
    ...last,
    ...set,
  };
  const { tool, n_past: nPast, repair, k } = base;
  const profile = client.told.agent.value?.settings.repair_budget ?? last?.budget ?? null;
  const choice = budgetChoice(part.calibrated?.[base.context], repair, nPast, profile);
  const wanted = picked ?? (last && last.budget === null ? "curve" : "calibrated");
  const budgetKind = choice.budget === null ? "curve" : wanted;
  const constants = { k, m: part.constants.m, rBase: part.constants.r_base };
  const settings = { ...base, budget: budgetKind === "calibrated" ? choice.budget : null };
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

