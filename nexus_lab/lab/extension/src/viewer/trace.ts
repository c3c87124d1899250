/**
 * Reads a single-file trace, as `nexus_lab.trace` writes it: one JSON object, tables column by column, times in
 * nanoseconds since `origin_ns`. Nothing in it is trusted: what has the wrong shape is left out or refused.
 */

const FORMAT = "nexus-session";
const KIND = "single-file trace";
const SCHEMA_VERSION = 1;

export type Cell = unknown;

/** One table; its columns are of equal length. */
export interface Table {
  height: number;
  columns: ReadonlyMap<string, readonly Cell[]>;
}

export interface Trace {
  name: string;
  created: string;
  status: string;
  contents: boolean;
  redacted: string[];
  model: string;
  runs: string[];
  notes: string[];
  writtenBy: string;
  tables: ReadonlyMap<string, Table>;
}

/** Why a file cannot be shown, and what to do about it. */
export interface Refusal {
  problem: string;
  nextStep: string;
}

export type Reading = { ok: true; trace: Trace } | { ok: false; refusal: Refusal };

export function readTrace(text: string): Reading {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch (error) {
    return refuse(`This file is not JSON: ${String(error)}`, "Fetch it again.");
  }
  if (!isObject(document) || document["format"] !== FORMAT || document["kind"] !== KIND) {
    return refuse("This file is JSON, but no nexus_lab trace.", "Open it with the JSON viewer or the editor.");
  }
  const version = document["schema_version"];
  if (typeof version !== "number" || version > SCHEMA_VERSION) {
    return refuse(
      `This trace was written with schema ${String(version)}; the viewer reads up to ${SCHEMA_VERSION}.`,
      "Update nexus_lab, or export the session with the version that wrote it.",
    );
  }
  const tables = readTables(document["tables"]);
  return typeof tables === "string"
    ? refuse(`The table ${tables} does not hold together: its columns differ in length.`, "Fetch the file again.")
    : { ok: true, trace: { ...readManifest(document), tables } };
}

function refuse(problem: string, nextStep: string): Reading {
  return { ok: false, refusal: { problem, nextStep } };
}

function readManifest(document: Record<string, unknown>): Omit<Trace, "tables"> {
  const model = isObject(document["model"]) ? document["model"]["name"] : undefined;
  return {
    name: text(document["name"]),
    created: text(document["created"]),
    status: text(document["status"]),
    contents: document["contents"] === true,
    redacted: list(document["redacted"]).map(text),
    model: text(model),
    runs: list(document["runs"]).map((run) => (isObject(run) ? text(run["id"]) : "")),
    notes: list(document["notes"]).map(text),
    writtenBy: text(document["nexus_lab"]),
  };
}

/** The tables; or the name of the first that does not hold together. */
function readTables(value: unknown): ReadonlyMap<string, Table> | string {
  const tables = new Map<string, Table>();
  for (const [name, columns] of Object.entries(isObject(value) ? value : {})) {
    const read = new Map<string, readonly Cell[]>();
    for (const [column, values] of Object.entries(isObject(columns) ? columns : {})) {
      read.set(column, list(values));
    }
    const heights = new Set([...read.values()].map((values) => values.length));
    if (heights.size > 1) {
      return name;
    }
    tables.set(name, { height: [...heights][0] ?? 0, columns: read });
  }
  return tables;
}

const EMPTY: Table = { height: 0, columns: new Map() };

export function table(trace: Trace, name: string): Table {
  return trace.tables.get(name) ?? EMPTY;
}

export function at(from: Table, column: string, row: number): Cell {
  return from.columns.get(column)?.[row] ?? null;
}

export function numberAt(from: Table, column: string, row: number): number | null {
  const value = at(from, column, row);
  return typeof value === "number" ? value : null;
}

export function textAt(from: Table, column: string, row: number): string {
  return text(at(from, column, row));
}

/** Any value as text; nested ones as JSON. */
export function text(value: unknown): string {
  if (value === null || value === undefined) {
    return "";
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
