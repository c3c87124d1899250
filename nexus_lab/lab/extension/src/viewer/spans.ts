/** The events table as a forest in the order that spans opened. */
import { numberAt, type Table } from "./trace";

export interface SpanOrder {
  /** Rows of the table, parents before their children. */
  rows: Int32Array;
  /** Depth of each, by position in `rows`. */
  depth: Uint8Array;
}

/** Rows of a recorded session come in the order they opened; a parent that is missing leaves a root. */
export function orderSpans(events: Table): SpanOrder {
  const { height } = events;
  const rowOf = new Map<string, number>();
  const run = events.columns.get("run");
  const key = (row: number, id: number): string => `${String(run?.[row])}/${id}`;
  for (let row = 0; row < height; row++) {
    const id = numberAt(events, "id", row);
    if (id !== null) {
      rowOf.set(key(row, id), row);
    }
  }
  const firstChild = new Int32Array(height).fill(-1);
  const nextSibling = new Int32Array(height).fill(-1);
  const lastChild = new Int32Array(height).fill(-1);
  const roots: number[] = [];
  for (let row = 0; row < height; row++) {
    const parent = numberAt(events, "parent", row);
    const above = parent === null ? undefined : rowOf.get(key(row, parent));
    if (above === undefined || above === row) {
      roots.push(row);
    } else if (firstChild[above] === -1) {
      firstChild[above] = lastChild[above] = row;
    } else {
      nextSibling[lastChild[above] ?? 0] = row;
      lastChild[above] = row;
    }
  }
  return walk(roots, firstChild, nextSibling, height);
}

function walk(roots: number[], firstChild: Int32Array, nextSibling: Int32Array, height: number): SpanOrder {
  const rows = new Int32Array(height);
  const depth = new Uint8Array(height);
  let filled = 0;
  const stack: [number, number][] = [];
  for (const root of roots) {
    stack.push([root, 0]);
    for (let top = stack.pop(); top !== undefined; top = stack.pop()) {
      const [row, level] = top;
      rows[filled] = row;
      depth[filled++] = Math.min(level, 255);
      const sibling = level > 0 ? (nextSibling[row] ?? -1) : -1;
      if (sibling >= 0) {
        stack.push([sibling, level]);
      }
      const child = firstChild[row] ?? -1;
      if (child >= 0) {
        stack.push([child, level + 1]);
      }
    }
  }
  // Rows in a ring of parents hang on no root; they are left out.
  return { rows: rows.subarray(0, filled), depth: depth.subarray(0, filled) };
}
