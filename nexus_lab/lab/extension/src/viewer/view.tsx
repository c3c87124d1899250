/** The trace as tabs of tables, and everything that the file says about the selected row. */
import * as React from "react";
import { count } from "../format";
import { sections, type Section } from "./sections";
import { VirtualTable } from "./table";
import { text, type Refusal, type Trace } from "./trace";

export function Refused({ refusal }: { refusal: Refusal }): React.JSX.Element {
  return (
    <div className="nl-empty" role="alert">
      <b>{refusal.problem}</b>
      <p>{refusal.nextStep}</p>
    </div>
  );
}

export function TraceView({ trace }: { trace: Trace }): React.JSX.Element {
  const all = React.useMemo(() => sections(trace), [trace]);
  const [open, setOpen] = React.useState(all[0]?.id);
  const section = all.find(({ id }) => id === open) ?? all[0];
  return (
    <>
      <Facts trace={trace} />
      <Tabs all={all} open={section?.id} show={setOpen} />
      {section !== undefined && <SectionView key={section.id} section={section} />}
    </>
  );
}

function Facts({ trace }: { trace: Trace }): React.JSX.Element {
  const contents = trace.contents
    ? `contents in${trace.redacted.length ? `, without ${trace.redacted.join(", ")}` : ""}`
    : "without contents: scores, operations, timings";
  return (
    <header className="nl-facts">
      <h1>{trace.name || "Session"}</h1>
      <span>{trace.model || "no model"}</span>
      <span>{trace.runs.length === 1 ? "1 run" : `${trace.runs.length} runs`}</span>
      <span>{trace.created}</span>
      <span>{contents}</span>
      {trace.notes.map((note) => (
        <span key={note}>{note}</span>
      ))}
    </header>
  );
}

function Tabs(props: { all: Section[]; open: string | undefined; show: (id: string) => void }): React.JSX.Element {
  const { all, open, show } = props;
  const bar = React.useRef<HTMLDivElement>(null);

  function onKeyDown(event: React.KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const here = all.findIndex(({ id }) => id === open);
    const next = step === undefined ? undefined : all[(here + step + all.length) % all.length];
    if (next !== undefined) {
      event.preventDefault();
      show(next.id);
      bar.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
    }
  }

  return (
    <div className="nl-tabs" role="tablist" aria-label="Tables of the trace" ref={bar} onKeyDown={onKeyDown}>
      {all.map(({ id, title, source }) => (
        <button
          key={id}
          type="button"
          role="tab"
          data-tab={id}
          aria-selected={id === open}
          tabIndex={id === open ? 0 : -1}
          onClick={() => show(id)}
        >
          {title} <span className="nl-num">{count(source.height)}</span>
        </button>
      ))}
    </div>
  );
}

function SectionView({ section }: { section: Section }): React.JSX.Element {
  const [words, setWords] = React.useState("");
  const [selected, setSelected] = React.useState(0);
  const wanted = React.useDeferredValue(words);
  const rows = React.useMemo(() => filtered(section, wanted), [section, wanted]);
  const row = rows[Math.min(selected, rows.length - 1)];
  return (
    <section className="nl-section" role="tabpanel" aria-label={section.title}>
      <div className="nl-tools">
        <label>
          Filter{" "}
          <input
            type="search"
            value={words}
            onChange={(event) => {
              setWords(event.target.value);
              setSelected(0);
            }}
          />
        </label>
        <span role="status" className="nl-muted nl-num">
          {count(rows.length)} of {count(section.rows.length)} rows
        </span>
      </div>
      <VirtualTable
        label={section.title}
        columns={section.columns}
        rows={rows}
        selected={Math.min(selected, rows.length - 1)}
        select={setSelected}
      />
      {row === undefined ? <p className="nl-empty">No row matches the filter.</p> : <Detail section={section} row={row} />}
    </section>
  );
}

function filtered(section: Section, words: string): ArrayLike<number> {
  const wanted = words.trim().toLowerCase();
  if (wanted === "") {
    return section.rows;
  }
  const columns = section.searched.map((name) => section.source.columns.get(name) ?? []);
  return Array.from(section.rows).filter((row) =>
    columns.some((values) => text(values[row]).toLowerCase().includes(wanted)),
  );
}

const NANOSECONDS = new Set(["start", "duration"]);

function Detail({ section, row }: { section: Section; row: number }): React.JSX.Element {
  const entries = [...section.source.columns].map(([name, values]) => [name, values[row]] as const);
  return (
    <aside className="nl-detail" aria-label="Selected row" tabIndex={0}>
      <dl>
        {entries
          .filter(([, value]) => value !== null && value !== undefined)
          .map(([name, value]) => (
            <React.Fragment key={name}>
              <dt>{NANOSECONDS.has(name) ? `${name}, ns` : name}</dt>
              <dd>{typeof value === "object" ? <pre>{JSON.stringify(value, null, 1)}</pre> : text(value)}</dd>
            </React.Fragment>
          ))}
      </dl>
    </aside>
  );
}
