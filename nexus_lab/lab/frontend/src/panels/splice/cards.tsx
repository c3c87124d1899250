/** The four results of a splice, each beside what it is to be compared with. */
import type { ComponentChildren } from "preact";
import { fixed, int, ms, NONE, percent } from "../../format";
import type { SpliceRun } from "../../protocol";
import { StatusMark } from "../../ui";
import { visibleText } from "../../ui/visible";

type Measured = NonNullable<SpliceRun["measured"]>;

function Pair({ label, share, own, children }: {
  label: string;
  share: number;
  own?: boolean;
  children: ComponentChildren;
}) {
  return (
    <>
      <span>{label}</span>
      <div class="tr">
        <i class={own ? "m" : undefined} style={{ width: `${100 * Math.max(0, Math.min(1, share))}%` }} />
      </div>
      <span class="num">{children}</span>
    </>
  );
}

function Card({ name, value, unit, children }: {
  name: ComponentChildren;
  value: ComponentChildren;
  unit?: string;
  children: ComponentChildren;
}) {
  return (
    <div class="card">
      <span class="k">{name}</span>
      <div class="v num">
        {value}
        {unit && <small> {unit}</small>}
      </div>
      {children}
    </div>
  );
}

/** How far the divergence stands above its floor: "1.6× floor", "at the floor". */
export function floorWords(dkl: number, floor: number): string {
  if (floor <= 0) return dkl <= 0 ? "at the floor" : "floor 0";
  return `${fixed(dkl / floor, 1)}× floor`;
}

/** "3.79× faster", "1.20× slower". */
export function speedWords(ttft: number, prefill: number): string {
  if (ttft <= 0 || prefill <= 0) return NONE;
  return prefill >= ttft ? `${fixed(prefill / ttft, 2)}× faster` : `${fixed(ttft / prefill, 2)}× slower`;
}

function Divergence({ measured }: { measured: Measured }) {
  const full = 1.25 * Math.max(measured.dkl, measured.noise_floor, 1e-12);
  return (
    <div class="pair">
      <Pair label="splice" share={measured.dkl / full} own>
        {floorWords(measured.dkl, measured.noise_floor)}
      </Pair>
      <Pair label="floor" share={measured.noise_floor / full}>
        {fixed(measured.noise_floor, 4)}
      </Pair>
    </div>
  );
}

/** The likeliest token of a path. */
export function likeliest(next: Measured["next"], path: "prefill" | "spliced"): Measured["next"][number] | null {
  return next.reduce<Measured["next"][number] | null>(
    (best, entry) => (best === null || entry[path] > best[path] ? entry : best),
    null,
  );
}

function FirstToken({ measured }: { measured: Measured }) {
  const row = (label: string, path: "prefill" | "spliced") => {
    const best = likeliest(measured.next, path);
    return (
      <>
        <span class="muted">{label}</span>
        <span class="num clip">{best ? <><code>{visibleText(best.text)}</code> p {fixed(best[path], 3)}</> : NONE}</span>
      </>
    );
  };
  return (
    <div class="pair two">
      {row("prefill", "prefill")}
      {row("splice", "spliced")}
    </div>
  );
}

function Times({ run }: { run: SpliceRun }) {
  const prefill = run.measured?.prefill_ms ?? null;
  const full = Math.max(run.ttft_ms, prefill ?? 0, 1e-9);
  return (
    <div class="pair">
      <Pair label="splice" share={run.ttft_ms / full} own>
        {prefill === null ? ms(run.ttft_ms) : speedWords(run.ttft_ms, prefill)}
      </Pair>
      <Pair label="prefill" share={(prefill ?? 0) / full}>
        {prefill === null ? "not measured" : ms(prefill)}
      </Pair>
    </div>
  );
}

function timeOf(value: number): { value: string; unit: string } {
  const [number = NONE, unit = ""] = ms(value).split("\u00a0");
  return { value: number, unit };
}

export function ResultCards({ run }: { run: SpliceRun }) {
  const { measured } = run;
  const off = <div class="tiny muted off">not measured</div>;
  const ttft = timeOf(run.ttft_ms);
  return (
    <div class="cards" role="group" aria-label="Result">
      <Card
        name={
          <>
            D<sub>KL</sub>(prefill ‖ spliced)
          </>
        }
        value={measured ? fixed(measured.dkl, 4) : NONE}
        unit={measured ? "nats" : undefined}
      >
        {measured ? <Divergence measured={measured} /> : off}
      </Card>
      <Card
        name="Top-1 token"
        value={
          measured ? (
            <StatusMark status={measured.same_first ? "ok" : "bad"}>{measured.same_first ? "same" : "differs"}</StatusMark>
          ) : (
            NONE
          )
        }
        unit={measured ? `${percent(measured.top1, 0)} of ${int(measured.n_positions)}` : undefined}
      >
        {measured ? <FirstToken measured={measured} /> : off}
      </Card>
      <Card name="TTFT, this block" value={ttft.value} unit={ttft.unit}>
        <Times run={run} />
      </Card>
      <Card name="Recomputed" value={fixed((100 * run.repaired) / Math.max(1, run.n_tokens), 1)} unit="%">
        <div class="pair">
          <Pair label="used" share={run.repaired / Math.max(1, run.n_tokens)} own>
            {int(run.repaired)} of {int(run.n_tokens)}
          </Pair>
          <Pair label="curve" share={run.curve_tokens / Math.max(1, run.n_tokens)}>
            {int(run.curve_tokens)}
          </Pair>
        </div>
      </Card>
    </div>
  );
}
