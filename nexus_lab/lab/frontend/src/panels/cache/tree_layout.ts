/** Which ops of a long program the small tree shows: the ends, the cursor, and where forks leave it. */
import { numbers } from "../../canvas/walk";
import type { CachePart, OpKind } from "../../protocol";

/** An op by its number, or a gap that stands for so many ops. */
export type TreeColumn = { op: number } | { gap: number };

export interface TreeBranch {
  /** Column of the last op that it shares. */
  column: number;
  kinds: OpKind[];
  /** Own ops that there is no room for. */
  more: number;
  label: string;
}

export interface TreeLayout {
  trunk: TreeColumn[];
  branches: TreeBranch[];
}

function wantedOps(count: number, marks: readonly number[], room: number): Set<number> {
  const wanted = new Set<number>();
  for (let reach = 0; reach < count; reach += 1) {
    for (const mark of [...marks, 1, count]) {
      for (const op of [mark - reach, mark + reach]) {
        if (op >= 1 && op <= count) wanted.add(op);
        if (wanted.size >= room) return wanted;
      }
    }
  }
  return wanted;
}

/** Columns of the trunk; `marks` come before everything else where there is no room for all. */
export function trunkColumns(count: number, marks: readonly number[], room: number): TreeColumn[] {
  if (count <= room) return numbers(1, count + 1).map((op) => ({ op }));
  const gaps = new Set(marks).size + 2;
  const wanted = [...wantedOps(count, marks, Math.max(2, room - gaps))].sort((a, b) => a - b);
  const columns: TreeColumn[] = [];
  let last = 0;
  for (const op of wanted) {
    if (op - last > 1) columns.push({ gap: op - last - 1 });
    columns.push({ op });
    last = op;
  }
  if (last < count) columns.push({ gap: count - last });
  return columns;
}

/** Lay out the live program with its forks in a row of `room` columns. */
export function layoutTree(part: Pick<CachePart, "ops" | "forks">, cursor: number, room: number): TreeLayout {
  const forks = part.forks.slice(-6);
  const marks = [...forks.map((fork) => fork.at), cursor].filter((op) => op >= 1 && op <= part.ops.length);
  const trunk = trunkColumns(part.ops.length, marks, room);
  const branches = forks.map((fork) => {
    const column = trunk.findIndex((entry) => "op" in entry && entry.op === fork.at);
    const free = Math.max(1, room - column - 4);
    const kinds = fork.kinds.slice(0, free);
    return { column, kinds, more: fork.kinds.length - kinds.length, label: fork.run };
  });
  return { trunk, branches };
}
