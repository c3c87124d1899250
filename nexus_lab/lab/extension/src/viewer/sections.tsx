/** What the viewer shows of each table: its columns, and the words that its filter searches. */
import * as React from "react";
import { count, duration, moment, number } from "../format";
import { orderSpans } from "./spans";
import { numberAt, table, textAt, type Table, type Trace } from "./trace";
import type { Column } from "./table";

export interface Section {
  id: string;
  title: string;
  source: Table;
  /** Rows in the order they are shown. */
  rows: ArrayLike<number>;
  columns: Column[];
  /** Columns of the file that the filter reads. */
  searched: string[];
}

export function sections(trace: Trace): Section[] {
  return [turns, spans, routing, operations, fidelity, messages]
    .map((make) => make(trace))
    .filter(({ id, source }) => source.height > 0 || id === "spans");
}

function inOrder(source: Table): ArrayLike<number> {
  return Int32Array.from({ length: source.height }, (_, row) => row);
}

function words(source: Table, key: string, title: string, width: string): Column {
  return { key, title, width, cell: (row) => textAt(source, key, row) };
}

function figure(source: Table, key: string, title: string, digits: number | null = null): Column {
  const shown = (row: number): string => {
    const value = numberAt(source, key, row);
    return digits === null ? count(value) : number(value, digits);
  };
  return { key, title, width: "96px", numeric: true, cell: shown };
}

const turnOf = (source: Table): Column => ({ ...figure(source, "turn", "Turn"), width: "52px" });

function turns(trace: Trace): Section {
  const source = table(trace, "turns");
  const seconds: Column = {
    key: "ttft_s",
    title: "TTFT",
    width: "88px",
    numeric: true,
    cell: (row) => {
      const value = numberAt(source, "ttft_s", row);
      return duration(value === null ? null : value * 1e9);
    },
  };
  return {
    id: "turns",
    title: "Turns",
    source,
    rows: inOrder(source),
    searched: ["request", "tool", "outcome", "answer"],
    columns: [
      turnOf(source),
      words(source, "outcome", "Outcome", "96px"),
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      words(source, "request", "Request", "minmax(160px, 3fr)"),
      seconds,
      figure(source, "prompt_tokens", "Prompt tokens"),
      figure(source, "generated_tokens", "Generated"),
    ],
  };
}

function spans(trace: Trace): Section {
  const source = table(trace, "events");
  const { rows, depth } = orderSpans(source);
  const depthOf = new Uint8Array(source.height);
  rows.forEach((row, position) => {
    depthOf[row] = depth[position] ?? 0;
  });
  const indented: Column = {
    key: "name",
    title: "Span",
    width: "minmax(200px, 3fr)",
    cell: (row) => (
      <span style={{ paddingInlineStart: 14 * Math.min(depthOf[row] ?? 0, 12) }}>{textAt(source, "name", row)}</span>
    ),
  };
  const times = (key: string, title: string, write: (value: number | null) => string): Column => ({
    key,
    title,
    width: "96px",
    numeric: true,
    cell: (row) => write(numberAt(source, key, row)),
  });
  return {
    id: "spans",
    title: "Spans",
    source,
    rows,
    searched: ["name", "kind", "status"],
    columns: [
      turnOf(source),
      indented,
      words(source, "kind", "Kind", "96px"),
      { ...words(source, "status", "Status", "104px"), cell: (row) => <Status word={textAt(source, "status", row)} /> },
      times("start", "Start", moment),
      times("duration", "Length", duration),
    ],
  };
}

const SIGNS: Record<string, [string, string]> = {
  ok: ["✓", "ok"],
  declined: ["!", "warn"],
  cancelled: ["!", "warn"],
  interrupted: ["!", "warn"],
  error: ["×", "bad"],
};

function Status({ word }: { word: string }): React.JSX.Element {
  const [sign, tone] = SIGNS[word] ?? ["–", "none"];
  return (
    <span className={`nl-st nl-${tone}`}>
      <i aria-hidden="true">{sign}</i> {word}
    </span>
  );
}

function routing(trace: Trace): Section {
  const source = table(trace, "routing");
  return {
    id: "routing",
    title: "Routing",
    source,
    rows: inOrder(source),
    searched: ["query", "tool", "decision", "reason"],
    columns: [
      turnOf(source),
      words(source, "decision", "Decision", "150px"),
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      words(source, "query", "Request", "minmax(160px, 2fr)"),
      figure(source, "margin", "Margin", 4),
      figure(source, "tau", "τ", 4),
      words(source, "reason", "Reason", "minmax(160px, 2fr)"),
    ],
  };
}

function operations(trace: Trace): Section {
  const source = table(trace, "ops");
  return {
    id: "ops",
    title: "Cache",
    source,
    rows: inOrder(source),
    searched: ["op", "note", "block"],
    columns: [
      turnOf(source),
      words(source, "op", "Operation", "96px"),
      figure(source, "tokens", "Tokens"),
      figure(source, "active_tokens", "Active"),
      figure(source, "logical_tokens", "Logical"),
      figure(source, "next_position", "Next position"),
      words(source, "note", "Note", "minmax(160px, 2fr)"),
    ],
  };
}

function fidelity(trace: Trace): Section {
  const source = table(trace, "fidelity");
  return {
    id: "fidelity",
    title: "Fidelity",
    source,
    rows: inOrder(source),
    searched: ["tool", "path", "decline_reason"],
    columns: [
      turnOf(source),
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      words(source, "path", "Path", "96px"),
      figure(source, "n_past", "n_past"),
      figure(source, "n_tokens", "Tokens"),
      figure(source, "repaired", "Repaired"),
      figure(source, "dkl", "D_KL, nats", 4),
      figure(source, "noise_floor", "Noise floor", 4),
      words(source, "decline_reason", "Declined because", "minmax(120px, 2fr)"),
    ],
  };
}

function messages(trace: Trace): Section {
  const source = table(trace, "messages");
  return {
    id: "messages",
    title: "Messages",
    source,
    rows: inOrder(source),
    searched: ["role", "text", "tool"],
    columns: [
      turnOf(source),
      words(source, "role", "Role", "88px"),
      words(source, "text", "Text", "minmax(200px, 4fr)"),
      figure(source, "n_tokens", "Tokens"),
    ],
  };
}
