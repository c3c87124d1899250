/**
 * What kernel and view say to each other. The kernel's half is `nexus_lab/lab/wire.py`.
 *
 * A view sends `hello` and gets every part once; from then on it gets the parts that changed, at most twenty
 * times a second, and never a new message before it has acknowledged the last. Of a part's lists only what is new
 * is sent; a view that has missed a message says hello again. Bulk arrays travel as binary buffers of the reply to
 * the request that asked for them.
 */

export type Status = "ok" | "warn" | "bad" | "none";

export interface Decline {
  code: string;
  reason: string;
  instead: string;
}

export interface ErrorInfo {
  type: string;
  message: string;
  next_step: string | null;
}

// -- messages ----------------------------------------------------------------------------------------------

export type ToKernel =
  | { kind: "hello" }
  | { kind: "ack"; revision: number }
  | { kind: "request"; id: number; method: string; params: Record<string, unknown> };

/** What of a list the view has, around the items that come: before them `front` items after the first `skip`, behind
 * them `back` items before the last `drop`. */
export type KeptItems = [skip: number, front: number, back: number, drop: number];

export type ToView =
  | {
      kind: "parts";
      /** One more with each message. */
      revision: number;
      parts: Partial<Parts>;
      /** By part and field; absent in the answer to `hello`, which is whole. */
      kept?: Partial<Record<keyof Parts, Record<string, KeptItems>>>;
    }
  | { kind: "reply"; id: number; ok: true; result: unknown }
  | { kind: "reply"; id: number; ok: false; error: ErrorInfo };

export interface Parts {
  bar: BarPart;
  models: ModelsPart;
  registry: RegistryPart;
  routing: RoutingPart;
  cache: CachePart;
  splice: SplicePart;
  agent: AgentPart;
  session: SessionPart;
}

export type PanelName = Exclude<keyof Parts, "bar">;

// -- bar ---------------------------------------------------------------------------------------------------

export interface BarPart {
  session: string | null;
  run: string | null;
  model: string | null;
  quantisation: string | null;
  /** Cells that some sequence holds, and all cells of the context. */
  context_used: number;
  context_total: number;
  engine: "unloaded" | "loading" | "idle" | "busy" | "waiting" | "stopping";
  /** What holds the engine, for example "turn 4, prefill". */
  holder: string | null;
  progress: { label: string; done: number; total: number | null } | null;
  notice: { status: Status; text: string } | null;
}
/** Methods: `stop {}` works at once, during prefill as well. */

// -- models ------------------------------------------------------------------------------------------------

/** A LoRA adapter that runs with a model; in a live view its name stands beside the weights too. */
export interface AdapterRow {
  name: string;
  path: string;
  sha256: string;
  lora_rank: number;
  /** Matrices of the model that it changes. */
  targets: number;
  size_bytes: number;
  /** Whether it says how much its word on close calls counts. */
  weighs_calls: boolean;
}

export interface ModelRow {
  name: string;
  path: string;
  source: string;
  size_bytes: number;
  architecture: string | null;
  quantisation: string | null;
  n_layer: number | null;
  n_head: number | null;
  n_head_kv: number | null;
  n_ctx_train: number | null;
  /** Estimate for weights and cache at the context length that is set. */
  memory_bytes: number | null;
  license: string | null;
  declines: { what: string; decline: Decline }[];
  error: ErrorInfo | null;
  loaded: boolean;
  adapter: AdapterRow | null;
}

export interface ModelsPart {
  rows: ModelRow[];
  n_ctx: number;
  threads: number;
  memory_free_bytes: number | null;
  folders: string[];
  /** Measured on this machine with the model that is loaded; null until it was measured. */
  speed: { prefill_tps: number; decode_tps: number; n_tokens: number; n_decoded?: number; n_runs?: number } | null;
}
/** Methods: `models.refresh {}`, `models.add_folder {path}`, `models.load {path, n_ctx?, threads?, adapter?}`,
 * `models.unload {}`, `models.measure {}`, `models.estimate {n_ctx}` -> {rows: ModelRow[]} (memory at that length). */

// -- registry ----------------------------------------------------------------------------------------------

export interface ServerRow {
  name: string;
  transport: "stdio" | "http" | "file";
  status: "ready" | "starting" | "failed" | "stopped" | "listed";
  tools: number;
  schema_tokens: number | null;
  signature_tokens: number | null;
  problem: ErrorInfo | null;
  /** Last line that the server wrote. */
  last_line: string | null;
  command: string | null;
  /** Command line or address alone, to be edited; secrets in it are masked, and stay what they are. */
  line: string | null;
  /** Names of the variables that it is started with; their values are never sent. */
  variables: string[];
}

export interface ToolRow {
  name: string;
  server: string;
  read_only: boolean;
  description: string;
  arguments: string[];
  schema_tokens: number | null;
  signature_tokens: number | null;
  checks: { severity: "warning" | "error"; text: string }[];
}

export interface RegistryPart {
  name: string;
  servers: ServerRow[];
  tools: ToolRow[];
  /** What is wrong with servers, and with tools that are not there because of it. */
  problems: { severity: "warning" | "error"; text: string }[];
  schema_tokens: number | null;
  signature_tokens: number | null;
  n_ctx: number | null;
}

export interface ToolDetail {
  name: string;
  server: string;
  description: string;
  read_only: boolean;
  signature: string;
  signature_tokens: number | null;
  /** Exactly as the model sees it. */
  schema: string;
  schema_tokens: number | null;
  block: { tokens: number; bytes: number; anchor: number } | null;
  examples: string[];
  used: { count: number; of: number };
}

export interface ListedServer {
  name: string;
  transport: "stdio" | "http";
  command: string;
}
/** Reply of the methods that add tools: how many, and one short sentence for each that could not be read. */
export interface LoadReply {
  /** Tools; absent where servers were only listed. */
  added?: number;
  problems: string[];
}
/** Methods: `registry.tool {name}` -> ToolDetail, `registry.load_file {path}`, `registry.load_text {text}` ->
 * LoadReply; `registry.list_servers {path? text?}` -> LoadReply & {servers: ListedServer[]} (starts nothing);
 * `registry.start {path? text?, names}`, `registry.connect {name, command? url?}`, `registry.retry {name, line?,
 * env?}` -> LoadReply (`env` sets variables, and with null removes them; `start` without path and text starts servers that are listed already); `registry.stop {name}`. */

// -- routing -----------------------------------------------------------------------------------------------

export interface CandidateRow {
  tool: string;
  dense: number | null;
  lexical: number | null;
  score: number;
  cross_encoder: number | null;
  /** Which of the texts that stand for the tool was nearest, and that text. */
  view: string | null;
  matched?: string | null;
}

export interface DecisionRow {
  id: string;
  source: "turn" | "box";
  turn: number | null;
  request: string;
  margin: number | null;
  tau: number | null;
  decision: "auto" | "escalated" | "escalation_unavailable" | "no_tool";
  tool: string | null;
  reason: string;
  /** How well the best tool fits, and what it must reach. */
  fit: number | null;
  threshold: number | null;
  candidates: CandidateRow[];
  times_ms: Record<string, number>;
  settings: Record<string, unknown>;
  mark: "right" | "wrong" | null;
  right_tool: string | null;
}

export interface RoutingPart {
  /** Newest first. */
  decisions: DecisionRow[];
  /** What a lexical score of 1 adds to the cosine in stage 1. */
  lexical_weight: number;
  /** Margins of recorded decisions, oldest first, with the mark of each. */
  margins: { margin: number; mark: "right" | "wrong" | null; ms: number }[];
  tau: number;
  calibrated: number | null;
  provenance: string;
  top_k: number;
  examples: number;
  turns: number;
}
/** Methods: `routing.route {request, with_conversation, top_k}` -> DecisionRow;
 * `routing.read_requests {text}` -> {requests: string[]}; `routing.apply {tau, top_k}`;
 * `routing.mark {id, mark, right_tool?}` (null: no tool fits); `routing.unmark {id}`. */

// -- cache -------------------------------------------------------------------------------------------------

export type OpKind = "append" | "splice" | "repair" | "drop" | "repos";

export interface OpCell {
  /** From 1. */
  index: number;
  kind: OpKind;
  tokens: number;
  note: string;
  detail: string;
  turn: number | null;
  state_id: string;
  parent_id: string | null;
  active: number;
  logical: number;
  next_position: number;
  seconds: number | null;
  dkl: number | null;
  noise_floor: number | null;
  declined: Decline | null;
  /** Why a breakpoint stops here. */
  stops: ("gate" | "declined" | "dkl" | "failed")[];
}

export interface CachePart {
  run: string | null;
  policy: string;
  ops: OpCell[];
  /** Operations behind the cursor; fewer than `ops.length` while looking back. */
  cursor: number;
  /** Changes whenever the tokens that `cache.state` gives have changed. */
  revision: number;
  counts: {
    active: number;
    logical: number;
    next_position: number;
    computed: number;
    spliced: number;
    repaired: number;
    dropped: number;
  };
  slots: { seq: number; tokens: number; kind: "live" | "warm"; label: string }[];
  n_slots: number;
  cells_used: number;
  n_ctx: number;
  arena: { total: number; given_out: number; asked_for: number; counters: Record<string, number> };
  breakpoints: { gate: boolean; declined: boolean; dkl: boolean; failed: boolean; epsilon: number };
  forks: { run: string; at: number; kinds: OpKind[]; note: string }[];
  policies: string[];
  /** Where a fork can go on: first behind the system prompt, then behind each turn whose messages stand `said` ops
   * in; it shares at most `end` ops. */
  fork_points: { said: number; end: number }[];
  /** Name that the next fork gets; absent where it is not known beforehand. */
  next_run?: string | null;
  /** Changes whenever drawings of the cache may be other ones. */
  drawn: number;
}

/** An element that the kernel has drawn: its tag, its attributes, and what is in it; or a text. */
export type DrawnNode = string | [tag: string, attributes: Record<string, string | true>, ...inside: DrawnNode[]];

/** Reply of `cache.fork`: how much of the old run is computed again, behind how many shared ops, and in words. */
export interface ForkReply {
  run: string;
  rerun_ops: number;
  rerun_tokens: number;
  at: number;
  note: string;
}

/** Reply of `cache.state`; buffers: uint8[n] of TokenState, int32[n] positions (-1 where dropped). */
export interface CacheStateReply {
  n: number;
  segments: { start: number; stop: number; label: string }[];
}

export const TOKEN_STATES = ["computed", "spliced", "repaired", "dropped"] as const;
/** Methods: `cache.goto {n}`, `cache.next_breakpoint {}`, `cache.state {}` -> CacheStateReply,
 * `cache.pieces {start, stop}` -> {pieces: string[]}, `cache.set_breakpoints {...}`,
 * `cache.fork {at, settings}` -> ForkReply; the turns that are asked again come after it. `cache.goto` and
 * `cache.next_breakpoint` reply {cursor, of, stops}, and so do `cache.back {}` and `cache.forward {}`.
 * `cache.view {name, values}` and `cache.study {name, values}` -> DrawnNode; buttons in drawings ask for
 * `cache.plan`, `cache.restore`, `cache.try_restore`, `cache.forget` and `cache.use_policy`, all {values}. */

// -- splice ------------------------------------------------------------------------------------------------

export interface SpliceSettings {
  tool: string;
  n_past: number;
  /** What the block is compiled behind: the system prompt, typical conversations, or nothing. */
  context: "system" | "typical" | "none";
  /** `fixed` runs `repair` with `budget`; the others choose by themselves, `bounded` by `epsilon` nats. */
  contract: "fixed" | "exact" | "bounded" | "paper";
  epsilon: number;
  repair: "leading" | "carried" | "trailing" | "profile" | "scattered" | "none" | "full";
  /** Fraction of the block; null takes R(n_past) from K. */
  budget: number | null;
  k: number;
  measure: boolean;
  attention: boolean;
}

export interface SpliceRun {
  id: string;
  settings: SpliceSettings;
  /** What was asked for, and what it led to: a sentence each. */
  led: string[];
  /** Sensitivity of the block's tokens as SVG paths in a view box of `n` by 10; null where it has no profile. */
  profile: { n: number; spliced: string; recomputed: string; words: string } | null;
  n_tokens: number;
  anchor: number;
  bytes: number;
  anchored: boolean;
  repaired: number;
  curve_tokens: number;
  steps: { name: string; detail: string; ms: number }[];
  declined: Decline | null;
  n_layer: number;
  n_head_kv: number;
  n_head: number;
  ttft_ms: number;
  /** What the shadow prefill measured; null with the switch off or where it was declined. */
  measured: {
    prefill_ms: number;
    dkl: number;
    noise_floor: number;
    n_positions: number;
    top1: number;
    same_first: boolean;
    next: { text: string; prefill: number; spliced: number }[];
  } | null;
  has_attention: boolean;
  /** Where the tokens before the block come from. */
  source?: string;
  /** Why nothing was measured although the switch was on. */
  measure_declined?: Decline | null;
  /** Why there is no attention although it was asked for. */
  attention_declined?: Decline | null;
}

export interface Calibrated {
  repair: string;
  epsilon: number;
  depths: { n_past: number; budget: number | null }[];
}

export interface SplicePart {
  /** `compiled`: the contexts that the tool's block is compiled behind. */
  tools: { tool: string; tokens: number | null; compiled: SpliceSettings["context"][] }[];
  constants: { k: number; m: number; r_base: number };
  n_ctx: number;
  settings: SpliceSettings | null;
  run: SpliceRun | null;
  unavailable: Decline | null;
  /** Smallest measured budget that keeps D_KL at or under `epsilon`, at each measured depth in rising order; between
   * two depths the larger of both holds, outside of them none. By compile context; null where none was calibrated. */
  calibrated?: Partial<Record<SpliceSettings["context"], Calibrated | null>>;
  last: {
    turn: number | null;
    tool: string;
    n_past: number | null;
    dkl: number | null;
    noise_floor: number | null;
    path: string;
    declined: Decline | null;
  }[];
}

export interface FrameRequest {
  run: string;
  step: number;
  tensor: "k" | "v" | "attention";
  measure: "relative" | "absolute" | "signed";
}

/** Reply of `splice.frame`; buffer: float32[rows * cols], row-major, NaN for "no value". A second buffer of that shape
 * has the noise floor of each cell, where it was measured: what the same prefill drifts by in other cells. */
export interface FrameReply {
  rows: number;
  cols: number;
  row_label: "layer";
  col_label: "KV head" | "query head";
  /** Range of this step, and of all steps. */
  step_range: [number, number];
  run_range: [number, number];
  /** Range of the steps whose rows stand in the cache: keys that are not rotated yet are far from all others, and
   * would leave one colour for the rest. */
  cached_range?: [number, number];
}
/** Methods: `splice.run {settings}` -> SpliceRun, `splice.frame FrameRequest` -> FrameReply. */

// -- agent -------------------------------------------------------------------------------------------------

export interface SpanRow {
  id: number;
  parent: number | null;
  name: string;
  kind: string;
  status: "running" | "ok" | "error" | "declined" | "cancelled";
  start_ms: number;
  ms: number | null;
  detail: string;
}

export interface TurnCard {
  number: number;
  request: string;
  /** The request in pieces, each with the arguments that were taken from it; empty where none was. */
  marked: [text: string, names: string | null][];
  /** By argument, where its value comes from. */
  grounds: Record<string, string>;
  answer: string;
  /** Tokens after which the answer was cut, at its limit; null where it ended by itself. */
  cut_at: number | null;
  state: "running" | "waiting" | "called" | "abstained" | "refused" | "failed" | "cancelled";
  tool: string | null;
  server: string | null;
  /** The call as far as the model has written it; empty once its arguments are known. */
  call: string;
  arguments: Record<string, unknown> | null;
  result: string | null;
  result_is_error: boolean;
  problem: ErrorInfo | null;
  splice: { path: string; declined: Decline | null; dkl: number | null; noise_floor: number | null } | null;
  total_ms: number | null;
  ttft_ms: number | null;
  prefill_ms: number | null;
  prompt_tokens: number | null;
  settings: Record<string, unknown>;
  spans: SpanRow[];
}

export interface Settings {
  schema_mode: string;
  policy: string;
  keep_responses: number;
  repos: boolean;
  repair: string;
  repair_budget: number;
  k: number;
  tau: number | null;
  top_k: number;
  shadow: boolean;
  temperature: number;
  max_tokens: number;
  answer_tokens: number;
  /** Most tools that one request calls. */
  max_calls: number;
  /** Seconds after which a turn is ended; null lets it take what it takes. */
  turn_seconds: number | null;
  ask_before: "writes" | "every" | "never";
}

export interface AgentPart {
  /** The newest turns, oldest of them first. */
  turns: TurnCard[];
  /** How many turns came before these; `agent.turns` gives them. */
  turns_before?: number;
  approval: {
    id: number;
    turn: number;
    tool: string;
    server: string;
    arguments: Record<string, unknown>;
    /** Where each value comes from, one short sentence; missing names were not found in the conversation. */
    sources: Record<string, string>;
  } | null;
  queue: string[];
  settings: Settings;
  schema_modes: string[];
  policies: string[];
  ready: boolean;
  /** Why nothing can be asked yet. */
  missing: string | null;
}
/** Methods: `agent.ask {text}` -> {waiting: number} at once, `agent.approve {allow, remember, arguments?, id?}`,
 * `agent.apply {settings}`, `agent.new_conversation {}`, `agent.unqueue {index}`, `agent.turns {start, stop}` ->
 * {turns: TurnCard[]} (places from 0, `stop` not included). */

// -- session -----------------------------------------------------------------------------------------------

export interface RunRow {
  run: string;
  path: string | null;
  started: string | null;
  model: string | null;
  policy: string | null;
  turns: number;
  status: Status;
  status_text: string;
  worst_dkl: number | null;
  note: string;
  live: boolean;
  imported: boolean;
}

export interface Comparison {
  a: string;
  b: string;
  note: string;
  measures: { name: string; unit: string; a: number | null; b: number | null }[];
  pairs: { turn: number; depth: number; name: string; a_ms: number | null; b_ms: number | null }[];
}

export interface SessionPart {
  name: string;
  folder: string;
  runs: RunRow[];
  /** `gone`: it was taken away while it is written, so that nothing is kept any more. */
  journal: { path: string; seconds_since_event: number | null; gone: boolean } | null;
  targets: { target: string; label: string; detail: string }[];
}
/** What is removed from contents: all kinds that are known, keys and passwords only, or nothing. */
export type Redaction = "all" | "secrets" | "none";

/** Reply of `session.export`. */
export interface ExportReply {
  path: string;
  /** The same as it is read: absolute, with the home folder as ~. */
  shown: string;
  bytes: number;
}
/** `settings` of `agent.apply`, `session.replay` and `cache.fork` hold only what is to change (Partial<Settings>);
 * `redact` is a Redaction, read only where `contents` is true. */
/** Methods: `session.open {path}`, `session.import {path? text?}`, `session.compare {a, b}` -> Comparison,
 * `session.export {run, target, contents, redact}` -> ExportReply, `session.estimate` with the same -> {bytes}
 * (about; nothing is written), `session.replay {run, settings}` ->
 * {run}. */
