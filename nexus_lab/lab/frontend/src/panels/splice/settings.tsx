/** What to splice, how deep, what to repair; the curve follows while K moves. */
import type { Signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { curveAt, drawCurve, type CurveData } from "../../canvas/curve";
import type { CanvasTheme } from "../../canvas/theme";
import type { Client } from "../../client";
import { fixed, int, percent } from "../../format";
import type { SplicePart, SpliceRun, SpliceSettings } from "../../protocol";
import { Box, Button, Canvas, Check, Empty, Field, NumberField, Problem, Select, StatusMark, useWidth, type Action } from "../../ui";
import { planOf, REPAIRS, type BudgetKind, type Draft, type Plan } from "./draft";

const CONTEXTS = [
  { value: "system", label: "system prompt" },
  { value: "typical", label: "typical conversations" },
  { value: "none", label: "nothing" },
] as const;
const CONTRACTS = [{ value: "fixed", label: "fixed strategy" }, "exact", "bounded", "paper"] as const;
const CURVE_HEIGHT = 150;
/** The slider begins at 1, where the curve is undefined, so that the limit can be seen. */
const K_RANGE = { min: 1, max: 16, step: 0.25 };

export function Curve({ client, plan }: { client: Client; plan: Plan }) {
  const [ref, width] = useWidth<HTMLDivElement>(314);
  const { constants, settings, tokens, choice } = plan;
  const data = useMemo<CurveData>(
    () => ({
      constants,
      nPast: settings.n_past,
      tokens,
      budget: choice.budget === null ? null : { fraction: choice.budget, word: choice.word },
    }),
    [constants.k, constants.m, constants.rBase, settings.n_past, tokens, choice.budget, choice.word],
  );
  const draw = useMemo(
    () => (ctx: CanvasRenderingContext2D, theme: CanvasTheme) => drawCurve(ctx, data, theme, { width, height: CURVE_HEIGHT }),
    [data, width],
  );
  const fraction = curveAt(settings.n_past, constants);
  const label = `R of n_past for K ${fixed(constants.k, 2)}: ${percent(fraction)} at ${int(settings.n_past)} tokens`;
  return (
    <div ref={ref} class="curve">
      {plan.problem ? (
        <div class="curve-off">
          <StatusMark status="bad" wrap>
            {plan.problem}
          </StatusMark>
        </div>
      ) : (
        <Canvas client={client} width={width} height={CURVE_HEIGHT} draw={draw} label={label} />
      )}
    </div>
  );
}

function KControl({ client, part, draft, off }: { client: Client; part: SplicePart; draft: Signal<Draft>; off: boolean }) {
  const plan = planOf(client, part, draft.value);
  const { k, m } = plan.constants;
  const change = (next: number) => {
    draft.value = { ...draft.value, k: next };
  };
  const kText = Number.isInteger(k) ? String(k) : fixed(k, 2);
  return (
    <div>
      <div class="small klab muted">
        K, full recompute from K × M:{" "}
        <b class="num">{off ? "–" : plan.problem ? `K = ${kText}` : `K = ${kText}, ${int(k * m)} tokens`}</b>
      </div>
      <div class="row krow">
        <input
          type="range"
          class="kslider"
          aria-label="K"
          aria-valuetext={`${kText}, full recompute from ${int(k * m)} tokens`}
          {...K_RANGE}
          max={Math.max(K_RANGE.max, Math.ceil(k))}
          value={k}
          disabled={off}
          onInput={(event) => change(Number(event.currentTarget.value))}
        />
        <NumberField aria-label="K" value={k} digits={Number.isInteger(k) ? 0 : 2} step={0.25} width={58} disabled={off} onValue={change} />
      </div>
      {off ? (
        <Empty title="No curve for this model" tight />
      ) : (
        <Curve client={client} plan={plan} />
      )}
    </div>
  );
}

function BudgetField({ plan, off, onPick }: { plan: Plan; off: boolean; onPick: (kind: BudgetKind) => void }) {
  const { choice, budgetKind, settings } = plan;
  const noRepair = settings.repair === "none" || settings.repair === "full";
  const radio = (kind: BudgetKind, label: string, disabled: boolean) => (
    <label class="c">
      <input
        type="radio"
        name="nl-budget"
        checked={budgetKind === kind}
        disabled={off || noRepair || disabled}
        onChange={() => onPick(kind)}
      />
      <span class="ink">{label}</span>
    </label>
  );
  const known = choice.budget === null ? choice.word : `${choice.word}, ${percent(choice.budget, 0)}`;
  return (
    <div role="radiogroup" aria-label="Budget">
      <div class="row small muted budget">
        <span>Budget</span>
        {radio("calibrated", known, choice.budget === null)}
        {radio("curve", "curve R(n_past)", false)}
      </div>
      {(noRepair || choice.why) && (
        <div class="tiny muted">{noRepair ? `no budget: repair is ${settings.repair}` : choice.why}</div>
      )}
    </div>
  );
}

export function SettingsBox({ client, part, draft, action, onRun }: {
  client: Client;
  part: SplicePart;
  draft: Signal<Draft>;
  action: Action<SpliceRun>;
  onRun: (settings: SpliceSettings) => void;
}) {
  const plan = planOf(client, part, draft.value);
  const { settings } = plan;
  const off = part.unavailable !== null;
  const set = (change: Draft) => {
    draft.value = { ...draft.value, ...change };
  };
  const bar = client.told.bar.value;
  const blocks = part.tools.map((tool) => ({
    value: tool.tool,
    label: `${tool.tool}${tool.tokens === null ? "" : `, ${int(tool.tokens)} tokens`}${tool.compiled.includes(settings.context) ? "" : ", not compiled"}`,
  }));
  return (
    <Box
      title="Splice"
      tools={
        <Check small checked={settings.measure} onCheck={(measure) => set({ measure })}>
          <span>
            measure <span class="muted">(shadow prefill)</span>
          </span>
        </Check>
      }
    >
      <div class="ctl">
        <div class="stack close">
          <div class="small">
            <span class="muted">Model </span>
            {bar?.model ? `${bar.model} ${bar.quantisation ?? ""}` : "none loaded"}
          </div>
          <Field label="Block">
            <Select value={settings.tool} options={blocks} onPick={(tool) => set({ tool })} disabled={blocks.length === 0} />
          </Field>
          <div class="cols half">
            <Field label="Depth, n_past">
              <NumberField
                value={settings.n_past}
                min={0}
                max={part.n_ctx || undefined}
                step={8}
                disabled={off}
                onValue={(n_past) => set({ n_past: Math.round(n_past) })}
              />
            </Field>
            <Field label="Compiled behind">
              <Select value={settings.context} options={CONTEXTS} onPick={(context) => set({ context })} disabled={off} />
            </Field>
            <Field label="Contract">
              <Select value={settings.contract} options={CONTRACTS} onPick={(contract) => set({ contract })} disabled={off} />
            </Field>
            {settings.contract === "fixed" && (
              <Field label="Repair">
                <Select value={settings.repair} options={REPAIRS} onPick={(repair) => set({ repair })} disabled={off} />
              </Field>
            )}
            {settings.contract === "bounded" && (
              <Field label="ε, nats">
                <NumberField value={settings.epsilon} min={1e-4} step={0.01} digits={4} disabled={off} onValue={(epsilon) => set({ epsilon })} />
              </Field>
            )}
          </div>
          {settings.contract === "fixed" && <BudgetField plan={plan} off={off} onPick={(budgetKind) => set({ budgetKind })} />}
        </div>
        <KControl client={client} part={part} draft={draft} off={off} />
        <div class="row run">
          <Button
            primary
            disabled={off || action.busy || plan.problem !== null}
            onClick={() => onRun(settings)}
          >
            {action.busy ? "Splicing" : "Run splice"}
          </Button>
          <Check small checked={settings.attention} disabled={off || !settings.measure} onCheck={(attention) => set({ attention })}>
            <span>capture attention</span>
          </Check>
        </div>
        <Problem fault={action.fault} />
      </div>
    </Box>
  );
}
