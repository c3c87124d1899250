/** Per-head drift after each step of a splice. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Client } from "../../client";
import { count } from "../../format";
import type { SpliceRun } from "../../protocol";
import { Box, Button, Empty, Problem, Segmented, Select } from "../../ui";
import { openFilm, type Film, type Frame } from "./film";
import { Figure, FigureLegend, FigureTable } from "./heatmap_view";
import { openPlayer } from "./player";
import type { Measure, RangeKind, Tensor } from "./reading";
import { StepCards } from "./steps";

const TENSORS = [
  { value: "k", label: "K" },
  { value: "v", label: "V" },
  { value: "attention", label: "Attention" },
] as const;
const MEASURES = (["relative", "absolute", "signed"] as const).map((value) => ({ value, label: value }));
const RANGES = [
  { value: "fixed", label: "fixed" },
  { value: "step", label: "this step" },
] as const;

function NotMeasured({ run, onMeasure, busy }: { run: SpliceRun; onMeasure: () => void; busy: boolean }) {
  const declined = run.measure_declined;
  if (declined) return <Empty title={`Not measured: ${declined.reason}`}>{declined.instead}</Empty>;
  return (
    <Empty title="Not measured">
      Drift needs a prefill of the same tokens.
      <div>
        <Button disabled={busy} onClick={onMeasure}>
          Measure and run again
        </Button>
      </div>
    </Empty>
  );
}

function NoAttention({ run, onCapture, busy }: { run: SpliceRun; onCapture: () => void; busy: boolean }) {
  const declined = run.attention_declined;
  if (declined) return <Empty title={`Attention was declined: ${declined.reason}`}>{declined.instead}</Empty>;
  return (
    <Empty title="Attention was not captured">
      It needs flash attention off.
      <div>
        <Button disabled={busy} onClick={onCapture}>
          Capture attention and run again
        </Button>
      </div>
    </Empty>
  );
}

/** What stands before the block: "behind 648 tokens of this conversation, not anchored". */
export function beforeWords(run: SpliceRun): string {
  const source = run.source ? ` of ${run.source}` : "";
  return `behind ${count(run.settings.n_past, "token")}${source}, ${run.anchored ? "anchored" : "not anchored"}`;
}

/** The frame of a step; while it is on its way, the one that was drawn last of the same film. */
function useFrame(film: Film, key: string, step: number): { frame: Frame | undefined; late: boolean } {
  const last = useRef<{ key: string; frame: Frame } | null>(null);
  void film.arrived.value;
  const frame = film.frame(step);
  if (frame) last.current = { key, frame };
  if (frame || last.current?.key !== key) return { frame, late: false };
  return { frame: last.current.frame, late: true };
}

export interface DriftProps {
  client: Client;
  run: SpliceRun;
  busy: boolean;
  /** Run again with a switch turned on. */
  onRerun: (change: { measure?: boolean; attention?: boolean }) => void;
}

export function DriftBox({ client, run, busy, onRerun }: DriftProps) {
  const tensor = client.keep<Tensor>("splice.tensor", "k");
  const measure = client.keep<Measure>("splice.measure", "relative");
  const range = client.keep<RangeKind>("splice.range", "fixed");
  const table = client.keep("splice.table", false);
  const cell = client.keep("splice.cell", { layer: 0, head: 0 });
  const steps = run.steps.length;
  const step = useSignal(Math.max(0, steps - 1));
  const film = useMemo(() => openFilm(client), [client]);
  const player = useMemo(() => openPlayer(step, () => steps, (at) => film.frame(at) !== undefined), [run.id]);
  useEffect(() => () => film.close(), [film]);
  useEffect(() => () => player.close(), [player]);
  useEffect(() => {
    step.value = Math.max(0, steps - 1);
  }, [run.id]);

  const hasFrames = run.measured !== null && (tensor.value !== "attention" || run.has_attention);
  const query = { run: run.id, tensor: tensor.value, measure: measure.value };
  const at = Math.min(step.value, Math.max(0, steps - 1));
  useEffect(() => {
    if (hasFrames && steps > 0) film.show(query, at, steps);
  }, [hasFrames, run.id, tensor.value, measure.value, at, steps]);
  const { frame, late } = useFrame(film, JSON.stringify(query), at);

  const goTo = (next: number) => {
    player.pause();
    step.value = next;
    const own = run.steps[next];
    if (own) client.say(`Step ${next + 1} of ${steps}: ${own.name}, ${own.detail}.`);
  };
  const playing = player.playing.value;
  const tools = (
    <>
      <Segmented label="Quantity" value={tensor.value} options={TENSORS} onPick={(next) => (tensor.value = next)} />
      <Segmented label="Scale" value={measure.value} options={MEASURES} onPick={(next) => (measure.value = next)} />
      <label class="c small">
        Range
        <Select value={range.value} options={RANGES} onPick={(next) => (range.value = next)} />
      </label>
      <Button pressed={table.value} onClick={() => (table.value = !table.value)}>
        Table
      </Button>
    </>
  );
  const heads = tensor.value === "attention" ? `${run.n_head} query heads` : `${run.n_head_kv} KV heads`;
  const figure = frame && { client, frame, tensor: tensor.value, measure: measure.value, range: range.value };
  return (
    <Box title="Per-head drift" note={<span class="opt">{`${run.n_layer} layers × ${heads}`}</span>} tools={tools} class="drift">
      {steps > 0 && (
        <div class="film">
          <StepCards steps={run.steps} step={at} onStep={goTo} />
          <div class="row small filmbar">
            <Button disabled={steps < 2 || !hasFrames} onClick={() => (playing ? player.pause() : player.play())}>
              {playing ? "Pause" : "Play"}
            </Button>
            {steps > 12 && (
              <input
                type="range"
                aria-label="Step"
                min={0}
                max={steps - 1}
                value={at}
                onInput={(event) => goTo(Number(event.currentTarget.value))}
              />
            )}
            <span class="num muted">
              step {at + 1} of {steps}
              {late ? ", on its way" : ""}
            </span>
            {steps <= 12 && <span class="grow" />}
            <span class="muted opt">{beforeWords(run)}</span>
          </div>
        </div>
      )}
      {run.measured === null && <NotMeasured run={run} busy={busy} onMeasure={() => onRerun({ measure: true })} />}
      {run.measured !== null && !hasFrames && (
        <NoAttention run={run} busy={busy} onCapture={() => onRerun({ measure: true, attention: true })} />
      )}
      {hasFrames && <Problem fault={film.problem.value} />}
      {hasFrames && figure && (table.value ? <FigureTable {...figure} /> : <Figure {...figure} cell={cell} />)}
      {hasFrames && figure && !table.value && <FigureLegend {...figure} />}
      {hasFrames && !figure && !film.problem.value && <Empty title="The frame is on its way" tight />}
    </Box>
  );
}
