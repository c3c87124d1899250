/**
 * The parts of one story for the shell and five panels: run r-014, four turns; turn 4 routes with margin 0.0086
 * under tau 0.0136, splices issue_write and waits for approval. For tests and the page in `dev/` only.
 */
import { connect, openView, type Channel, type Client } from "../src/client";
import type {
  AgentPart,
  BarPart,
  CandidateRow,
  Comparison,
  DecisionRow,
  ErrorInfo,
  ModelsPart,
  Parts,
  RegistryPart,
  RoutingPart,
  SessionPart,
  SpanRow,
  ToKernel,
  ToolDetail,
  ToolRow,
  ToView,
  TurnCard,
} from "../src/protocol";
import { random } from "./fixtures_cache";

export const TAU = 0.0136;

export const BAR: BarPart = {
  session: "ticket-triage",
  run: "r-014",
  model: "SmolLM2-135M-Instruct",
  quantisation: "Q4_1",
  context_used: 1117,
  context_total: 8192,
  engine: "waiting",
  holder: "turn 4, waiting for approval",
  progress: null,
  notice: null,
};

export const PREFILL: Partial<BarPart> = {
  engine: "busy",
  holder: "turn 5, prefill",
  progress: { label: "prefill", done: 512, total: 1179 },
};

type Tool = [name: string, server: string, effect: "read" | "write", schema: number, signature: number, problem?: string];
const TOOLS: Tool[] = [
  ["actions_list", "github", "read", 387, 27], ["add_issue_comment", "github", "write", 241, 22],
  ["add_sub_issue", "github", "write", 203, 19], ["create_branch", "github", "write", 158, 18],
  ["create_pull_request", "github", "write", 274, 27], ["delete_file", "github", "write", 181, 20],
  ["find_duplicate", "github", "read", 96, 17], ["get_file_contents", "github", "read", 296, 21],
  ["get_job_logs", "github", "read", 262, 24], ["issue_dependency_write", "github", "write", 240, 21],
  ["issue_read", "github", "read", 211, 19], ["issue_write", "github", "write", 431, 32],
  ["label_write", "github", "write", 140, 15], ["list_issues", "github", "read", 372, 28],
  ["merge_pull_request", "github", "write", 196, 21], ["search_code", "github", "read", 318, 16],
  ["get_on_call", "beacon-status", "read", 118, 12],
  ["open_incident", "beacon-status", "write", 402, 24, "no type: severity"],
  ["set_component", "beacon-status", "write", 377, 26, "name clash"], ["read_text", "files", "read", 164, 13],
];

export const toolRow = ([name, server, effect, schema, signature, problem]: Tool): ToolRow => ({
  name,
  server,
  read_only: effect === "read",
  description: `${name.replaceAll("_", " ")}: what it does, in a sentence. More follows.`,
  arguments: ["owner", "repo"],
  schema_tokens: schema,
  signature_tokens: signature,
  checks: problem ? [{ severity: "warning", text: problem }] : [],
});

export function manyTools(count: number): ToolRow[] {
  return Array.from({ length: count }, (_, i) => toolRow([`tool_${i}`, `server-${i % 40}`, i % 3 ? "read" : "write", 200 + (i % 90), 20]));
}

export const REGISTRY: RegistryPart = {
  name: "triage",
  servers: [
    { name: "github", transport: "stdio", status: "ready", tools: 16, schema_tokens: 16904, signature_tokens: 1108, problem: null, last_line: null, command: "github-mcp-server stdio", line: "github-mcp-server stdio", variables: [] },
    { name: "files", transport: "stdio", status: "ready", tools: 1, schema_tokens: 2371, signature_tokens: 189, problem: null, last_line: null, command: null, line: null, variables: [] },
    { name: "beacon-status", transport: "http", status: "ready", tools: 3, schema_tokens: 2143, signature_tokens: 169, problem: null, last_line: null, command: null, line: null, variables: [] },
    {
      name: "calendar", transport: "stdio", status: "failed", tools: 0, schema_tokens: null, signature_tokens: null, command: "CALDAV_TOKEN=*** calendar-mcp",
      line: "calendar-mcp", variables: ["CALDAV_TOKEN"],
      problem: { type: "ServerStartFailed", message: "exited, code 1", next_step: "Set the variable and retry." },
      last_line: "CALDAV_URL is not set",
    },
  ],
  tools: TOOLS.map(toolRow),
  problems: [],
  schema_tokens: 21418,
  signature_tokens: 1466,
  n_ctx: 8192,
};

export const DETAIL: ToolDetail = {
  name: "issue_write",
  server: "github",
  description: "Create a ticket, or change one.",
  read_only: false,
  signature:
    'issue_write(method: "create"|"update", owner: string, repo: string, issue_number?: int, title?: string, state?: "open"|"closed", state_reason?: "completed"|"not_planned"|"duplicate", duplicate_of?: int)',
  signature_tokens: 32,
  schema: JSON.stringify(
    {
      name: "issue_write",
      description: "Create a ticket, or change one.",
      inputSchema: {
        type: "object",
        required: ["method", "owner", "repo"],
        properties: {
          method: { type: "string", enum: ["create", "update"], description: "create opens a new ticket; update changes issue_number" },
          owner: { type: "string" },
          repo: { type: "string" },
          issue_number: { type: "integer", minimum: 1 },
        },
      },
    },
    null,
    2,
  ),
  schema_tokens: 431,
  block: { tokens: 431, bytes: 9961472, anchor: 64 },
  examples: ["Close 482 as a duplicate of 467.", "Reopen ticket 12"],
  used: { count: 23, of: 240 },
};

const CANDIDATES: CandidateRow[] = (
  [
    ["find_duplicate", 0.612, 0.58, 0.162], ["issue_write", 0.604, 0.57, 0.731], ["issue_read", 0.571, 0.49, 0.041],
    ["add_issue_comment", 0.548, 0.41, 0.022], ["issue_dependency_write", 0.533, 0.36, 0.013],
    ["list_issues", 0.489, 0.33, 0.003], ["add_sub_issue", 0.497, 0.31, 0.004], ["label_write", 0.461, 0.22, 0.001],
  ] as [string, number, number, number][]
)
  .map(([tool, dense, lexical, cross]) => ({ tool, dense, lexical, score: 0.7 * dense + 0.3 * lexical, cross_encoder: cross, view: null }))
  .sort((a, b) => b.cross_encoder - a.cross_encoder);

export const DECISION: DecisionRow = {
  id: "d4",
  source: "turn",
  turn: 4,
  request: "Close 482 as a duplicate of 467.",
  margin: 0.0086,
  tau: TAU,
  decision: "escalated",
  tool: "issue_write",
  reason: "The margin of 0.0086 is under tau = 0.0136; the cross-encoder chose issue_write among 8.",
  fit: 0.6024,
  threshold: 0.31,
  candidates: CANDIDATES,
  times_ms: { embed: 3.1, scan: 0.009, rerank: 38.4, fuse: 0.3, gate: 0.1 },
  settings: {},
  mark: null,
  right_tool: null,
};

const auto = (id: string, turn: number, request: string, margin: number, tool: string): DecisionRow => ({
  ...DECISION,
  id,
  turn,
  request,
  margin,
  tool,
  decision: "auto",
  reason: `The margin of ${margin} reaches tau = 0.0136.`,
  candidates: CANDIDATES.map((row) => ({ ...row, cross_encoder: null })).sort((a, b) => b.score - a.score),
  times_ms: { embed: 3.1, scan: 0.009, fuse: 0.3 },
  mark: "right",
});

/** 240 margins, 48 of them under the calibrated tau. */
export function margins(count = 240): RoutingPart["margins"] {
  const next = random(11);
  const gauss = () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
  const values = Array.from({ length: count }, () => 0.029 * Math.exp(0.86 * gauss())).sort((a, b) => a - b);
  const at = Math.round(count / 5);
  const scale = (2 * TAU) / ((values[at - 1] ?? TAU) + (values[at] ?? TAU));
  return values.map((value) => {
    const margin = value * scale;
    const wrong = next() < 0.3 * Math.exp(-margin / 0.02) + 0.02;
    return { margin, mark: next() < 0.26 ? (wrong ? "wrong" : "right") : null, ms: margin < TAU ? 41.9 : 3.4 };
  });
}

export const ROUTING: RoutingPart = {
  lexical_weight: 0.5,
  decisions: [
    DECISION,
    auto("d3", 3, "Is there an older ticket about the same crash?", 0.0287, "find_duplicate"),
    {
      ...DECISION, id: "d2", turn: 2, request: "Find a pasta place near the office.", margin: 0.0051, decision: "no_tool", tool: null, mark: "right",
      reason: "The best score, 0.211 for find_duplicate, is under 0.310: no tool seems to fit.", fit: 0.211,
    },
    auto("d1", 1, "What does ticket 482 in brightloom/orchard say?", 0.0481, "issue_read"),
  ],
  margins: margins(),
  tau: TAU,
  calibrated: TAU,
  provenance: "calibrated on 240 requests",
  top_k: 8,
  examples: 6,
  turns: 3,
};

function spans(rows: [name: string, ms: number | null, detail: string, status?: SpanRow["status"]][]): SpanRow[] {
  let at = 0;
  return rows.map(([name, ms, detail, status], index) => {
    const span: SpanRow = { id: index + 1, parent: null, name, kind: name, status: status ?? "ok", start_ms: at, ms, detail };
    at += ms ?? 0;
    return span;
  });
}

const TURN: TurnCard = {
  number: 1,
  request: "What does ticket 482 in brightloom/orchard say?",
  marked: [["What does ticket ", null], ["482", "issue_number"], [" in ", null], ["brightloom/orchard", "owner, repo"], [" say?", null]],
  grounds: { owner: "said in the request", repo: "said in the request", issue_number: "said in the request" },
  answer: "Checkout freezes after the address step when the postcode is empty; seen on three tills since Monday. Mara Lind opened it, and nobody is assigned.",
  state: "called",
  tool: "issue_read",
  server: "github",
  call: "",
  cut_at: null,
  arguments: { owner: "brightloom", repo: "orchard", issue_number: 482 },
  result: '{"number": 482, "title": "Checkout freezes"}',
  result_is_error: false,
  problem: null,
  splice: { path: "spliced", declined: null, dkl: 0.0061, noise_floor: 0.0052 },
  total_ms: 3478,
  ttft_ms: 410,
  prefill_ms: 1390,
  prompt_tokens: 407,
  settings: { k: 4, tau: TAU, top_k: 8 },
  spans: spans([
    ["route", 3.4, "issue_read, auto, margin 0.0481"], ["splice", 34.5, "211 tokens at n_past 196, 11 recomputed"],
    ["fill", 532, "33 tokens, 62 tokens/s, all 4 values from the request"], ["tool", 421, "github issue_read, 556 tokens back"],
    ["respond", 2487, "prefill 1,390 ms, 68 tokens 1,097 ms"],
  ]),
};

export const WAITING_TURN: TurnCard = {
  ...TURN,
  marked: [],
  grounds: {},
  number: 4,
  request: "Close 482 as a duplicate of 467.",
  answer: "",
  state: "waiting",
  tool: "issue_write",
  result: null,
  splice: { path: "spliced", declined: null, dkl: 0.0082, noise_floor: 0.0052 },
  total_ms: null,
  ttft_ms: 392,
  prefill_ms: 60,
  prompt_tokens: 1079,
  spans: spans([
    ["route", 41.9, "issue_write, escalated, margin 0.0086"], ["cache", 65.5, "drop 863, repos 5.4 ms, append 24 tokens 60 ms"],
    ["splice", 284, "431 tokens at n_past 648, 108 recomputed"], ["fill", 613, "38 tokens, 62 tokens/s, grammar from the schema"],
    ["tool", null, "waiting for approval", "running"],
  ]),
};

export const AGENT: AgentPart = {
  turns: [
    TURN,
    {
      ...TURN, number: 2, request: "Find a pasta place near the office.", marked: [], grounds: {}, state: "abstained", tool: null, server: null, arguments: null, result: null, splice: null, total_ms: 751,
      answer: "None of the 71 tools can look up restaurants. Load a server that can, or ask me about tickets, files or status pages.",
      spans: spans([["route", 42.3, "escalated, margin 0.0051; none fits"], ["respond", 709, "prefill 48 ms, 41 tokens 661 ms"]]),
    },
    {
      ...TURN, number: 3, request: "Is there an older ticket about the same crash?", marked: [], grounds: {}, tool: "find_duplicate", total_ms: 2505,
      answer: "Yes: 467, “Basket hangs when the postcode is missing”, opened nine days earlier and still open.",
      splice: { path: "prefill", dkl: null, noise_floor: null, declined: { code: "tokenizer", reason: "find_duplicate.atb was compiled by another tokenizer", instead: "prefilled instead: 96 tokens, 240 ms" } },
      spans: spans([
        ["route", 3.3, "find_duplicate, auto, margin 0.0287"], ["splice", 240, "declined: other tokenizer; prefilled 96 tokens", "declined"],
        ["fill", 435, "27 tokens, 62 tokens/s"], ["tool", 655, "github find_duplicate, 172 tokens back"], ["respond", 1172, "prefill 430 ms, 46 tokens 742 ms"],
      ]),
    },
    WAITING_TURN,
  ],
  approval: {
    id: 7,
    turn: 4,
    tool: "issue_write",
    server: "github",
    arguments: { method: "update", owner: "brightloom", repo: "orchard", issue_number: 482, state: "closed", state_reason: "duplicate", duplicate_of: 467 },
    sources: {
      method: "schema: only value that fits an issue_number", owner: "copied from turn 1", repo: "copied from turn 1", issue_number: "copied from turn 4",
      state: "turn 4: “Close”", duplicate_of: "copied from turn 4, agrees with turn 3",
    },
  },
  queue: [],
  settings: {
    schema_mode: "splice(exact)", policy: "rolling_drop_repos", keep_responses: 1, repos: true, repair: "leading", repair_budget: 0.25, k: 4, tau: TAU, top_k: 8,
    shadow: true, temperature: 0, max_tokens: 256, answer_tokens: 160, max_calls: 4, turn_seconds: null, ask_before: "writes",
  },
  schema_modes: ["signature", "full", "splice(exact)", "splice(paper)"],
  policies: ["rolling_drop_repos", "rolling_drop", "drop_reasoning", "summarise", "full"],
  ready: true,
  missing: null,
};

const run = (name: string, started: string, model: string | null, policy: string | null, turns: number, status: "ok" | "warn" | "bad", text: string, dkl: number | null, note = "") => ({
  run: name, path: null, started: `2026-11-${started}:00`, model, policy, turns, status, status_text: text, worst_dkl: dkl, note, live: name === "r-014", imported: name === "r-010",
});

export const SESSION: SessionPart = {
  name: "ticket-triage.nexus",
  folder: "/data/ticket-triage.nexus",
  runs: [
    run("r-014", "30T10:38", "SmolLM2-135M", "rolling_drop_repos", 4, "warn", "waiting for approval", 0.0082),
    run("r-013", "30T10:21", "SmolLM2-135M", "rolling_drop_repos", 4, "ok", "finished", 0.0082, "fork of r-012 at op 4, re-ran the model"),
    run("r-012", "30T10:07", "SmolLM2-135M", "full", 4, "ok", "finished", 0.0061),
    run("r-011", "30T09:52", "Qwen2-VL-7B", "full", 4, "warn", "finished, 3 declined", null, "splice declined: M-RoPE model; prefilled instead"),
    run("r-010", "29T17:30", null, null, 12, "ok", "imported", null, "OTLP file, read-only; replay needs a model"),
    run("r-009", "29T16:44", "SmolLM2-135M", "rolling_drop", 3, "ok", "recovered", 0.0113, "from the journal after a kernel restart"),
    run("r-008", "29T16:02", "SmolLM2-135M", "full", 2, "bad", "tool failed", 0.0061, "issue_write: 403, token may not write"),
  ],
  journal: { path: "/data/ticket-triage.nexus/journal", seconds_since_event: 3, gone: false },
  targets: [
    { target: "parquet", label: "Bundle, Parquet", detail: "polars, everything" },
    { target: "json", label: "Single-file trace", detail: "opens in Lab, no kernel" },
    { target: "otlp", label: "OTLP JSON", detail: "Phoenix, Jaeger" },
    { target: "perfetto", label: "Perfetto JSON", detail: "ui.perfetto.dev" },
    { target: "html", label: "HTML, self-contained", detail: "read-only, no network" },
  ],
};

export const COMPARISON: Comparison = {
  a: "r-012",
  b: "r-013",
  note: "paired by kind, name and order; same tool and arguments in 4 of 4 turns",
  measures: [
    { name: "First argument token, turn 4", unit: "ms", a: 1194, b: 392 },
    { name: "All spans, 4 turns", unit: "ms", a: 9822, b: 8991 },
    { name: "Active tokens at the end", unit: "", a: 2113, b: 1250 },
    { name: "Recomputed in splices", unit: "tokens", a: 442, b: 119 },
    { name: "D_KL, turn 4 (floor 0.0052)", unit: "nats", a: 0.0052, b: 0.0082 },
  ],
  pairs: (
    [
      [1, "route", 3.4, 3.4], [1, "splice issue_read", 34.5, 34.6], [1, "fill", 532, 533], [1, "tool issue_read", 421, 418], [1, "respond", 2487, 2484],
      [2, "route", 42.3, 42.1], [2, "respond", 709, 708], [4, "route", 41.9, 41.8], [4, "cache drop, repos", null, 5.5], [4, "append user", 60, 60],
      [4, "splice issue_write", 1092, 284], [4, "fill", 613, 604], [4, "tool issue_write", 540, 533], [4, "respond", 741, 728],
    ] as [number, string, number | null, number][]
  ).map(([turn, name, a, b]) => ({ turn, depth: 1, name, a_ms: a, b_ms: b })),
};

export const MODELS: ModelsPart = {
  rows: [
    { name: "SmolLM2-135M-Instruct", path: "/models/SmolLM2-135M-Instruct.Q4_1.gguf", source: "bundled", size_bytes: 98e6, architecture: "llama", quantisation: "Q4_1", n_layer: 30, n_head: 9, n_head_kv: 3, n_ctx_train: 8192, memory_bytes: 480e6, license: "Apache-2.0", declines: [], error: null, loaded: true, adapter: null },
    { name: "Qwen2.5-14B-Instruct", path: "/models/qwen2.5-14b.gguf", source: "folder", size_bytes: 8.99e9, architecture: "qwen2", quantisation: "Q4_K_M", n_layer: 48, n_head: 40, n_head_kv: 8, n_ctx_train: 131072, memory_bytes: 11e9, license: "Apache-2.0", declines: [], error: null, loaded: false, adapter: null },
    {
      name: "Qwen2-VL-7B", path: "/models/qwen2-vl.gguf", source: "folder", size_bytes: 4.7e9, architecture: "qwen2vl", quantisation: "Q4_K_M", n_layer: 28, n_head: 28, n_head_kv: 4, n_ctx_train: 32768, memory_bytes: 5.4e9, license: null,
      declines: [{ what: "splice", decline: { code: "mrope", reason: "M-RoPE model", instead: "Blocks are prefilled; the answer is the same." } }], error: null, loaded: false, adapter: null,
    },
    {
      name: "broken.gguf", path: "/models/broken.gguf", source: "folder", size_bytes: 1200, architecture: null, quantisation: null, n_layer: null, n_head: null, n_head_kv: null, n_ctx_train: null, memory_bytes: null, license: null, declines: [],
      error: { type: "ModelFileError", message: "The file ends inside its header.", next_step: "Download it again." }, loaded: false, adapter: null,
    },
  ],
  n_ctx: 8192,
  threads: 2,
  memory_free_bytes: 6.2e9,
  folders: ["/models"],
  speed: { prefill_tps: 402, decode_tps: 61.8, n_tokens: 512 },
};

export const PARTS: Partial<Parts> = {
  bar: BAR, models: MODELS, registry: REGISTRY, routing: ROUTING, agent: AGENT, session: SESSION,
};

export type Sent = Extract<ToKernel, { kind: "request" }>;
type Answers = Record<string, (params: Record<string, unknown>) => unknown>;

export const ANSWERS: Answers = {
  "registry.tool": ({ name }) => {
    const row = REGISTRY.tools.find((tool) => tool.name === name);
    return { ...DETAIL, name, server: row?.server, read_only: row?.read_only, schema_tokens: row?.schema_tokens ?? 9, signature_tokens: row?.signature_tokens ?? 2 };
  },
  "registry.list_servers": () => ({ servers: [{ name: "mail", transport: "stdio", command: "mail-mcp --read-only" }, { name: "wiki", transport: "http", command: "http://127.0.0.1:9000/mcp" }], problems: ["bad: left out: neither command nor URL"] }),
  "routing.route": ({ request }) => ({ ...DECISION, id: "box", source: "box", turn: null, request }),
  "routing.read_requests": ({ text }) => ({ requests: String(text).split("\n").filter(Boolean) }),
  "session.compare": ({ a, b }) => ({ ...COMPARISON, a, b }),
  "session.export": ({ run: name, target }) => ({ path: `/home/me/data/${name}.${target}`, shown: `~/data/${name}.${target}`, bytes: 412345 }),
  "session.estimate": ({ target, contents }) => ({ bytes: target === "html" ? 2_000_000 : contents ? 500_000 : 400_000 }),
};

type Kept = Extract<ToView, { kind: "parts" }>["kept"];

export interface FakeKernel {
  client: Client;
  channel: Channel;
  /** Everything that the view sent, in order. */
  log: ToKernel[];
  asked(method: string): Record<string, unknown>[];
  /** With `kept` as a message that builds on the one before it. */
  push(parts: Partial<Parts>, kept?: Kept): void;
  /** Sends a message that is lost on its way. */
  miss(): void;
  reply(id: number, result: unknown): void;
  fail(id: number, error: ErrorInfo): void;
  close(): void;
}

/** A kernel in memory. What `answers` does not know stays without a reply, until a test gives one. */
export function fakeKernel(parts: Partial<Parts> = PARTS, answers: Answers = ANSWERS): FakeKernel {
  let hear: (message: ToView, buffers: readonly DataView[]) => void = () => undefined;
  let gone: () => void = () => undefined;
  let revision = 0;
  const log: ToKernel[] = [];
  const reply = (id: number, result: unknown) => hear({ kind: "reply", id, ok: true, result }, []);
  const push = (changed: Partial<Parts>, kept?: Kept) =>
    hear({ kind: "parts", revision: ++revision, parts: changed, ...(kept && { kept }) }, []);
  const channel: Channel = {
    send: (message) => {
      log.push(message);
      if (message.kind !== "request") return;
      const answer = answers[message.method];
      if (answer) queueMicrotask(() => reply(message.id, answer(message.params)));
    },
    on: (callback) => {
      hear = callback;
      return () => {
        hear = () => undefined;
      };
    },
    onClosed: (callback) => {
      gone = callback;
      return () => undefined;
    },
  };
  const client = openView(connect(channel));
  push(parts);
  return {
    client,
    channel,
    log,
    asked: (method) => log.flatMap((message) => (message.kind === "request" && message.method === method ? [message.params] : [])),
    push,
    miss: () => void (revision += 1),
    reply,
    fail: (id, error) => hear({ kind: "reply", id, ok: false, error }, []),
    close: () => gone(),
  };
}
