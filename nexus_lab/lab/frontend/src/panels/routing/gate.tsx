/** The margin histogram with its threshold, and what the threshold would have done. */
import { useRef } from "preact/hooks";
import type { Client } from "../../client";
import { drawHistogram, HISTOGRAM_HEIGHT, histogramLayout } from "../../canvas/histogram";
import { fixed, int, msNumber, NONE, percent } from "../../format";
import type { DecisionRow, RoutingPart } from "../../protocol";
import { Box, Button, Canvas, Empty, NumberField, Problem, useAction, useWidth } from "../../ui";
import { axisEnd, roundTau, splitAt, TAU_STEP, tauAfterKey, type Side } from "./share";

interface Draft {
  tau: number;
  setTau(tau: number): void;
  topK: number;
}

function Histogram({ client, part, current, draft }: { client: Client; part: RoutingPart; current: number | null; draft: Draft }) {
  const [box, width] = useWidth<HTMLDivElement>(440);
  const area = useRef<HTMLDivElement>(null);
  const end = axisEnd(part.margins, part.tau, part.calibrated, current);
  const layout = histogramLayout(width, end);
  const tau = Math.min(draft.tau, end);
  const n = part.margins.filter(({ margin }) => margin < tau).length;
  const words = `tau ${fixed(tau, 4)}: ${int(n)} of ${int(part.margins.length)} recorded decisions would escalate`;

  const setTau = (wanted: number) => {
    const next = roundTau(wanted, end);
    draft.setTau(next);
    const under = part.margins.filter(({ margin }) => margin < next).length;
    client.say(`tau ${fixed(next, 4)}: ${int(under)} of ${int(part.margins.length)} recorded decisions would escalate.`);
  };
  const toMargin = (event: PointerEvent) => {
    const left = area.current?.getBoundingClientRect().left ?? 0;
    return layout.margin(event.clientX - left);
  };
  const grab = (event: PointerEvent) => {
    if (event.button !== 0) return;
    const handle = event.currentTarget as HTMLElement;
    handle.setPointerCapture?.(event.pointerId);
    event.preventDefault();
    handle.focus();
  };
  const drag = (event: PointerEvent) => {
    const handle = event.currentTarget as HTMLElement;
    if (handle.hasPointerCapture?.(event.pointerId)) setTau(toMargin(event));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const next = tauAfterKey(tau, event.key, end);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    setTau(next);
  };
  return (
    <div ref={box}>
      <div class="hist" ref={area} style={{ height: HISTOGRAM_HEIGHT }}>
        <Canvas
          client={client}
          width={width}
          height={HISTOGRAM_HEIGHT}
          label={`Histogram of the margins of ${int(part.margins.length)} recorded decisions; ${words}`}
          draw={(context, theme) => drawHistogram(context, { margins: part.margins, tau, end, current }, theme, layout)}
        />
        <div
          class="tau-handle"
          role="slider"
          tabIndex={0}
          aria-label="tau, margin threshold"
          aria-valuemin={0}
          aria-valuemax={end}
          aria-valuenow={tau}
          aria-valuetext={words}
          style={{ left: layout.x(tau) - 9, height: layout.baseline }}
          onPointerDown={grab}
          onPointerMove={drag}
          onKeyDown={onKeyDown}
        />
      </div>
    </div>
  );
}

function SideRow({ pattern, name, side }: { pattern: string; name: string; side: Side }) {
  return (
    <tr>
      <td>
        <span class="lg">
          <i class={pattern} />
          {name}
        </span>
      </td>
      <td class="r num">{int(side.decisions)}</td>
      <td class="r num">{int(side.marked)}</td>
      <td class="r num">{side.marked ? `${int(side.right)} (${percent(side.right / side.marked, 0)})` : NONE}</td>
      <td class="r num">{msNumber(side.meanMs)}</td>
    </tr>
  );
}

function AtThisTau({ part, tau }: { part: RoutingPart; tau: number }) {
  const split = splitAt(part.margins, tau);
  return (
    <table aria-label={`Recorded decisions at tau ${fixed(tau, 4)}`}>
      <thead>
        <tr>
          <th scope="col">At this τ</th>
          <th scope="col" class="r">Decisions</th>
          <th scope="col" class="r">Marked</th>
          <th scope="col" class="r">Marked right</th>
          <th scope="col" class="r">
            Mean time <span class="u">ms</span>
          </th>
        </tr>
      </thead>
      <tbody>
        <SideRow pattern="pat-E" name="would escalate" side={split.escalates} />
        <SideRow pattern="solid" name="resolves by itself" side={split.resolves} />
      </tbody>
    </table>
  );
}

export function GateBox({ client, part, decision, draft }: { client: Client; part: RoutingPart; decision: DecisionRow | null; draft: Draft }) {
  const apply = useAction(client, "routing.apply");
  const tauChanged = Math.abs(draft.tau - part.tau) > 1e-9;
  const kChanged = draft.topK !== part.top_k;
  const names = [tauChanged && `τ ${fixed(draft.tau, 4)}`, kChanged && `k ${draft.topK}`].filter(Boolean).join(", ");
  const { calibrated } = part;
  const run = async () => {
    const done = await apply.run({ tau: draft.tau, top_k: draft.topK });
    if (done !== null) client.say(`${names}: used from the next turn and kept in the profile.`);
  };
  return (
    <Box title="Margin against τ" note={`${int(part.margins.length)} recorded decisions over these tools`}>
      {part.margins.length === 0 && (
        <Empty title="No decision is on record yet" tight>
          Route a request, or ask the agent; margins gather here.
        </Empty>
      )}
      <Histogram client={client} part={part} current={decision?.margin ?? null} draft={draft} />
      <div class="row tau-row">
        <label class="c">
          τ{" "}
          <NumberField aria-label="tau, margin threshold" value={draft.tau} digits={4} step={TAU_STEP} min={0} max={2} onValue={draft.setTau} />
        </label>
        {calibrated !== null && (
          <Button onClick={() => draft.setTau(roundTau(calibrated, Infinity))}>Calibrated {fixed(calibrated, 4)}</Button>
        )}
        <span class="grow" />
        <span class="small muted num">in use: {fixed(part.tau, 4)}</span>
        <Button primary disabled={!names || apply.busy} onClick={() => void run()}>
          {names ? `Apply ${names}` : "Apply"}
        </Button>
      </div>
      {part.provenance && <p class="tiny muted anywhere origin">Calibrated: {part.provenance}</p>}
      <Problem fault={apply.fault} />
      <hr />
      <AtThisTau part={part} tau={draft.tau} />
    </Box>
  );
}
