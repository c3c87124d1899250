/** The program and its forks, shared from the left. */
import type { ComponentChildren } from "preact";
import { count, int } from "../../format";
import type { CachePart, OpKind } from "../../protocol";
import { Box, OP_LETTERS, useWidth } from "../../ui";
import { layoutTree, type TreeBranch } from "./tree_layout";

const CELL = 20;
const STEP = 24;
const ROW = 34;

function Cell({ x, y, kind, current }: { x: number; y: number; kind: OpKind; current?: boolean }) {
  const color = `var(--nl-op-${kind})`;
  const fill = kind === "drop" ? "var(--nl-bg)" : `color-mix(in srgb, ${color} 24%, var(--nl-bg))`;
  return (
    <g transform={`translate(${x} ${y})`}>
      <rect width={CELL} height={CELL} rx={2} style={{ fill, stroke: color }} stroke-dasharray={kind === "drop" ? "3 2" : undefined} />
      <text class="s" x={CELL / 2} y={14} text-anchor="middle">
        {OP_LETTERS[kind]}
      </text>
      {current && <rect class="cur" x={-2.5} y={-2.5} width={CELL + 5} height={CELL + 5} rx={3} />}
    </g>
  );
}

function Gap({ x, y, ops }: { x: number; y: number; ops: number }) {
  return (
    <text x={x + CELL / 2} y={y + 14} text-anchor="middle">
      {ops > 99 ? "…" : `+${ops}`}
      <title>{count(ops, "op")}</title>
    </text>
  );
}

function Branch({ branch, y }: { branch: TreeBranch; y: number }) {
  const from = branch.column * STEP + CELL / 2;
  const x = (branch.column + 1) * STEP;
  const start = branch.column < 0 ? 0 : x;
  const end = start + branch.kinds.length * STEP;
  return (
    <g>
      {branch.column >= 0 && <path class="ax" d={`M${from} ${CELL + 3} V${y + CELL / 2} H${x - 3}`} fill="none" />}
      {branch.kinds.map((kind, index) => (
        <Cell key={index} x={start + index * STEP} y={y} kind={kind} />
      ))}
      <text x={end + 4} y={y + 14}>
        {branch.more > 0 ? `+${branch.more} ` : ""}
        {branch.label}
      </text>
    </g>
  );
}

function spoken(part: CachePart): string {
  const forks = part.forks.map((fork) => `${fork.run} shares ${count(fork.at, "op")} and has ${count(fork.kinds.length, "op")} of its own`);
  return [`${part.run ?? "this run"}: ${count(part.ops.length, "op")}`, ...forks].join("; ");
}

export function ProgramTree({ part, cursor }: { part: CachePart; cursor: number }) {
  const [ref, width] = useWidth<HTMLDivElement>(300);
  const { trunk, branches } = layoutTree(part, cursor, Math.max(6, Math.floor((width - 50) / STEP)));
  const height = CELL + 6 + branches.length * ROW;
  const cells: ComponentChildren[] = trunk.map((column, index) => {
    if ("gap" in column) return <Gap key={`gap ${index}`} x={index * STEP} y={3} ops={column.gap} />;
    const op = part.ops[column.op - 1];
    return op && <Cell key={column.op} x={index * STEP} y={3} kind={op.kind} current={column.op === cursor} />;
  });
  const notes = part.forks.slice(-6).filter((fork) => fork.note);
  return (
    <Box title="Program tree" note={part.forks.length > 0 ? "shared from the left" : "no forks yet"}>
      <div ref={ref} class="ptree">
        <svg width={width} height={height} role="img" aria-label={spoken(part)}>
          {cells}
          <text x={trunk.length * STEP + 4} y={17}>
            {part.run}
          </text>
          {branches.map((branch, index) => (
            <Branch key={`${branch.label} ${index}`} branch={branch} y={3 + (index + 1) * ROW} />
          ))}
        </svg>
        {notes.map((fork) => (
          <div key={fork.run} class="small muted over">
            {fork.run}, from op {int(fork.at)}: {fork.note}
          </div>
        ))}
      </div>
    </Box>
  );
}
