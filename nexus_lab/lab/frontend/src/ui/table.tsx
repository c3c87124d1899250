/** Tables: every row for a few, only those in sight above `VIRTUAL_FROM`. */
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export const VIRTUAL_FROM = 200;
const OVERSCAN = 8;

export interface Column<Row> {
  head: ComponentChildren;
  cell: (row: Row, index: number) => ComponentChildren;
  right?: boolean;
  class?: string | ((row: Row) => string);
  headClass?: string;
  width?: number | string;
}

interface TableProps<Row> {
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string | number;
  /** Keys of rows drawn as selected. */
  selected?: ReadonlySet<string | number>;
  /** Makes rows focusable; called on click, Enter, Space and when the arrows move. */
  onSelect?: (row: Row, index: number) => void;
  /** Largest height in px; needed for virtual rows. */
  height?: number;
  /** Height of a row in px, all alike above `VIRTUAL_FROM` rows. */
  rowHeight?: number;
  /** Extra rows after the last, drawn as they are. */
  tail?: ComponentChildren;
}

function windowOf(count: number, top: number, height: number, rowHeight: number): [number, number] {
  const first = Math.max(0, Math.floor(top / rowHeight) - OVERSCAN);
  return [first, Math.min(count, first + Math.ceil(height / rowHeight) + 2 * OVERSCAN)];
}

export function Table<Row>(props: TableProps<Row>) {
  const { label, columns, rows, rowKey, selected, onSelect, height, rowHeight = 26, tail } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [active, setActive] = useState<string | number | null>(null);
  const wanted = useRef<number | null>(null);

  const virtual = rows.length > VIRTUAL_FROM;
  const [from, to] = virtual ? windowOf(rows.length, top, height ?? 520, rowHeight) : [0, rows.length];
  const activeKey = active ?? (selected ? [...selected][0] : undefined);
  const found = activeKey === undefined ? -1 : rows.findIndex((row) => rowKey(row) === activeKey);
  const tabStop = found < from || found >= to ? from : found;

  useLayoutEffect(() => {
    if (wanted.current === null) return;
    const index = wanted.current;
    wanted.current = null;
    scroller.current?.querySelector<HTMLElement>(`tr[data-i="${index}"]`)?.focus();
  });

  const goTo = (index: number) => {
    const row = rows[index];
    if (!row) return;
    wanted.current = index;
    setActive(rowKey(row));
    const box = scroller.current;
    if (virtual && box) {
      const view = height ?? box.clientHeight;
      const head = box.querySelector("thead")?.clientHeight ?? 0;
      const at = index * rowHeight;
      if (at < box.scrollTop) box.scrollTop = at;
      else if (at + rowHeight > box.scrollTop + view - head) box.scrollTop = at + rowHeight - view + head;
      setTop(box.scrollTop);
    }
    onSelect?.(row, index);
  };
  const onKeyDown = (event: KeyboardEvent, index: number) => {
    if (event.target !== event.currentTarget) return;
    const page = Math.max(1, Math.floor((height ?? 260) / rowHeight) - 1);
    const steps: Record<string, number> = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      Home: 0,
      End: rows.length - 1,
      PageDown: index + page,
      PageUp: index - page,
      Enter: index,
      " ": index,
    };
    const next = steps[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    goTo(Math.max(0, Math.min(rows.length - 1, next)));
  };

  const cellClass = (column: Column<Row>, row: Row) => {
    const own = typeof column.class === "function" ? column.class(row) : column.class ?? "";
    return `${column.right ? "r num" : ""} ${own}`.trim() || undefined;
  };
  const drawRow = (row: Row, index: number): JSX.Element => {
    const key = rowKey(row);
    const chosen = selected?.has(key) ?? false;
    const attributes = onSelect
      ? {
          tabIndex: index === tabStop ? 0 : -1,
          "aria-selected": chosen,
          onClick: (event: MouseEvent) => {
            if (!(event.target as Element).closest("button, input, select, label, a")) {
              setActive(key);
              onSelect(row, index);
            }
          },
          onKeyDown: (event: KeyboardEvent) => onKeyDown(event, index),
        }
      : {};
    return (
      <tr
        key={key}
        data-i={index}
        class={chosen ? "sel" : undefined}
        aria-rowindex={virtual ? index + 2 : undefined}
        style={virtual ? { height: rowHeight } : undefined}
        {...attributes}
      >
        {columns.map((column, place) => (
          <td key={place} class={cellClass(column, row)}>
            {column.cell(row, index)}
          </td>
        ))}
      </tr>
    );
  };
  const gap = (name: string, size: number) =>
    size > 0 ? (
      <tr key={name} class="gap" aria-hidden="true">
        <td colSpan={columns.length} style={{ height: size }} />
      </tr>
    ) : null;

  return (
    <div
      class={`scroll ${virtual ? "virtual" : ""}`}
      ref={scroller}
      style={height ? { maxHeight: height } : undefined}
      onScroll={(event) => virtual && setTop(event.currentTarget.scrollTop)}
    >
      <table role={onSelect ? "grid" : undefined} aria-label={label} aria-rowcount={virtual ? rows.length + 1 : undefined}>
        <thead>
          <tr>
            {columns.map((column, place) => (
              <th
                key={place}
                scope="col"
                class={`${column.right ? "r" : ""} ${column.headClass ?? ""}`.trim() || undefined}
                style={column.width === undefined ? undefined : { width: column.width }}
              >
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {gap("before", from * rowHeight)}
          {rows.slice(from, to).map((row, offset) => drawRow(row, from + offset))}
          {gap("after", (rows.length - to) * rowHeight)}
          {tail}
        </tbody>
      </table>
    </div>
  );
}
