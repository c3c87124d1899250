/** Probability of the next token on both paths: the likely ones on one scale, the rest on its own. */
import { niceCeiling } from "../../canvas/strip";
import { fixed, NONE } from "../../format";
import type { SpliceRun } from "../../protocol";
import { Box, Legend } from "../../ui";
import { visibleText } from "../../ui/visible";

type Next = NonNullable<SpliceRun["measured"]>["next"];

/** Part of the column that a full bar takes, so that its number has room. */
const FULL = 72;

export interface NextGroup {
  rows: Next;
  scale: number;
}

/** A round probability at or above `value`. */
export function scaleFor(value: number): number {
  return value > 0.5 ? 1 : niceCeiling(value, 1e-9);
}

/** The first four, and the others; each with a scale of its own. */
export function nextGroups(next: Next): NextGroup[] {
  return [next.slice(0, 4), next.slice(4)]
    .filter((rows) => rows.length > 0)
    .map((rows) => ({ rows, scale: scaleFor(Math.max(...rows.map((row) => Math.max(row.prefill, row.spliced)))) }));
}

function Bar({ value, scale, path }: { value: number; scale: number; path: "ref" | "spd" }) {
  return (
    <div class="ln">
      <i class={path} style={{ width: `${Math.max(0.5, (FULL * value) / scale)}%` }} />
      <span class="num">{fixed(value, 4)}</span>
    </div>
  );
}

function Group({ group }: { group: NextGroup }) {
  return (
    <div class="bars">
      {group.rows.map((row, index) => (
        <>
          <div class="t" key={`t${index}`} title={JSON.stringify(row.text)}>
            {/^ \S/.test(row.text) ? "␣" : ""}{visibleText(row.text)}
          </div>
          <div class="p2" key={`p${index}`}>
            <Bar value={row.prefill} scale={group.scale} path="ref" />
            <Bar value={row.spliced} scale={group.scale} path="spd" />
          </div>
        </>
      ))}
      <div />
      <div class="tiny muted">probability; full bar is {String(group.scale)}</div>
    </div>
  );
}

export function NextToken({ next }: { next: Next }) {
  const legend = (
    <span class="row legend">
      <span class="lg">
        <i class="ref" />
        prefill
      </span>
      <Legend kind="splice">spliced</Legend>
    </span>
  );
  return (
    <Box title="Next token, both paths" note="after the block, first token of the call" tools={legend}>
      {next.length === 0 ? (
        <span class="muted">{NONE}</span>
      ) : (
        <div class="cols nextg">
          {nextGroups(next).map((group, index) => (
            <Group key={index} group={group} />
          ))}
        </div>
      )}
    </Box>
  );
}
