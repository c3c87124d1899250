/** A table that draws only the rows in sight; the arrow keys move the selected row. */
import * as React from "react";

const ROW = 24;
const OVERSCAN = 8;

export interface Column {
  key: string;
  title: string;
  /** Any CSS width of a grid column. */
  width: string;
  numeric?: boolean;
  cell: (row: number) => React.ReactNode;
}

interface Props {
  label: string;
  columns: readonly Column[];
  /** What each line shows, by position. */
  rows: ArrayLike<number>;
  selected: number;
  select: (position: number) => void;
}

export function VirtualTable({ label, columns, rows, selected, select }: Props): React.JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  const [view, setView] = React.useState({ top: 0, height: 600 });

  React.useLayoutEffect(() => {
    const element = box.current;
    if (element === null) {
      return undefined;
    }
    const measure = (): void => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const first = Math.max(0, Math.floor(view.top / ROW) - OVERSCAN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + OVERSCAN);
  const template = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };

  function onKeyDown(event: React.KeyboardEvent): void {
    const page = Math.max(1, Math.floor(view.height / ROW) - 2);
    const moves: Record<string, number> = {
      ArrowDown: selected + 1,
      ArrowUp: selected - 1,
      PageDown: selected + page,
      PageUp: selected - page,
      Home: 0,
      End: rows.length - 1,
    };
    const target = moves[event.key];
    if (target === undefined || rows.length === 0) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const position = Math.min(Math.max(target, 0), rows.length - 1);
    select(position);
    scrollTo(box.current, position);
  }

  const lines = [];
  for (let position = first; position < last; position++) {
    const row = rows[position] ?? 0;
    lines.push(
      <div
        key={position}
        role="row"
        id={rowId(label, position)}
        aria-rowindex={position + 2}
        aria-selected={position === selected}
        className="nl-row"
        style={{ ...template, top: position * ROW }}
        onClick={() => select(position)}
      >
        {columns.map((column) => (
          <div key={column.key} role="gridcell" className={column.numeric === true ? "nl-num nl-right" : ""}>
            {column.cell(row)}
          </div>
        ))}
      </div>,
    );
  }
  return (
    <div
      className="nl-grid"
      role="grid"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      aria-activedescendant={selected >= first && selected < last ? rowId(label, selected) : undefined}
      tabIndex={0}
      ref={box}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" className="nl-headrow">
        <div role="row" className="nl-row nl-head" style={template} aria-rowindex={1}>
          {columns.map((column) => (
            <div key={column.key} role="columnheader" className={column.numeric === true ? "nl-right" : ""}>
              {column.title}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={{ height: rows.length * ROW, position: "relative" }}>
        {lines}
      </div>
    </div>
  );
}

function rowId(label: string, position: number): string {
  return `nl-trace-${label.replace(/\W/g, "-")}-${position}`;
}

function scrollTo(element: HTMLDivElement | null, position: number): void {
  if (element === null) {
    return;
  }
  const top = position * ROW;
  if (top < element.scrollTop) {
    element.scrollTop = top;
  } else if (top + 2 * ROW > element.scrollTop + element.clientHeight) {
    // The heading stays in sight and covers one row.
    element.scrollTop = top + 2 * ROW - element.clientHeight;
  }
}
