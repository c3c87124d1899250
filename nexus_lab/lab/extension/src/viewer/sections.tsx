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

/** A table of the file in its own order, each row with its turn first. */
function listed(
  trace: Trace,
  title: string,
  { name, searched, columns }: { name: string; searched: string[]; columns: (source: Table) => Column[] },
): Section {
  const source = table(trace, name);
  const shown = [turnOf(source), ...columns(source)];
  return { id: name, title, source, rows: inOrder(source), searched, columns: shown };
}

function turns(trace: Trace): Section {
  const seconds = (source: Table): Column => ({
    key: "ttft_s",
    title: "TTFT",
    width: "88px",
    numeric: true,
    cell: (row) => {
      const value = numberAt(source, "ttft_s", row);
      return duration(value === null ? null : value * 1e9);
    },
  });
  return listed(trace, "Turns", {
    name: "turns",
    searched: ["request", "tool", "outcome", "answer"],
    columns: (source) => [
      words(source, "outcome", "Outcome", "96px"),
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      {
        ...words(source, "request", "Request", "minmax(160px, 3fr)"),
        cell: (row) => textAt(source, "request", row) || "not recorded",
      },
      seconds(source),
      { ...figure(source, "prompt_tokens", "Prompt tokens"), width: "116px" },
      figure(source, "generated_tokens", "Generated"),
    ],
  });
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

const routing = (trace: Trace): Section =>
  listed(trace, "Routing", {
    name: "routing",
    searched: ["query", "tool", "decision", "reason"],
    columns: (source) => [
      words(source, "decision", "Decision", "150px"),
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      words(source, "query", "Request", "minmax(160px, 2fr)"),
      figure(source, "margin", "Margin", 4),
      figure(source, "tau", "τ", 4),
      words(source, "reason", "Reason", "minmax(160px, 2fr)"),
    ],
  });

const operations = (trace: Trace): Section =>
  listed(trace, "Cache", {
    name: "ops",
    searched: ["op", "note", "block"],
    columns: (source) => [
      words(source, "op", "Operation", "96px"),
      figure(source, "tokens", "Tokens"),
      figure(source, "active_tokens", "Active"),
      figure(source, "logical_tokens", "Logical"),
      figure(source, "next_position", "Next position"),
      words(source, "note", "Note", "minmax(160px, 2fr)"),
    ],
  });

const fidelity = (trace: Trace): Section =>
  listed(trace, "Fidelity", {
    name: "fidelity",
    searched: ["tool", "path", "decline_reason"],
    columns: (source) => [
      words(source, "tool", "Tool", "minmax(120px, 1fr)"),
      words(source, "path", "Path", "96px"),
      figure(source, "n_past", "n_past"),
      figure(source, "n_tokens", "Tokens"),
      figure(source, "repaired", "Repaired"),
      figure(source, "dkl", "D_KL, nats", 4),
      figure(source, "noise_floor", "Noise floor", 4),
      words(source, "decline_reason", "Declined because", "minmax(120px, 2fr)"),
    ],
  });

const messages = (trace: Trace): Section =>
  listed(trace, "Messages", {
    name: "messages",
    searched: ["role", "text", "tool"],
    columns: (source) => [
      words(source, "role", "Role", "88px"),
      words(source, "text", "Text", "minmax(200px, 4fr)"),
      figure(source, "n_tokens", "Tokens"),
    ],
  });
