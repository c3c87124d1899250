/**
 * A kernel of one story for the Cache and Splice panels: turn 4 drops 863 tokens, repositions (next 1,487 to 624),
 * splices issue_write (431 tokens) at n_past 648 and repairs 108 of it. The states are a real fold of the ops.
 */
import { connect, type Channel, type Client } from "../src/client";
import type {
  BarPart,
  CachePart,
  CacheStateReply,
  DrawnNode,
  FrameReply,
  FrameRequest,
  OpCell,
  OpKind,
  Parts,
  SplicePart,
  SpliceRun,
  SpliceSettings,
  ToKernel,
  ToView,
} from "../src/protocol";

interface Scripted {
  kind: OpKind;
  tokens: number;
  note: string;
  turn: number;
  at?: number;
  ranges?: [start: number, tokens: number][];
  stops?: OpCell["stops"];
}

const STORY: Scripted[] = [
  { kind: "append", tokens: 196, note: "system, turn 1 user", turn: 1 },
  { kind: "splice", tokens: 211, note: "issue_read.atb", turn: 1 },
  { kind: "repair", tokens: 11, note: "leading 5 %", turn: 1, at: 196 },
  { kind: "append", tokens: 1080, note: "turns 1 to 3", turn: 3, stops: ["declined"] },
  { kind: "drop", tokens: 863, note: "3 ranges, keep 1", turn: 4, ranges: [[196, 211], [440, 556], [1146, 96]] },
  { kind: "repos", tokens: 624, note: "next 1,487 → 624", turn: 4 },
  { kind: "append", tokens: 24, note: "turn 4 user", turn: 4, stops: ["gate"] },
  { kind: "splice", tokens: 431, note: "issue_write.atb", turn: 4 },
  { kind: "repair", tokens: 108, note: "by profile 25 %", turn: 4, at: 1511 },
  { kind: "append", tokens: 38, note: "turn 4 call", turn: 4 },
];

const SEGMENTS: CacheStateReply["segments"] = (
  [
    [0, 165, "system prompt"], [165, 31, "turn 1, user"], [196, 211, "block issue_read"], [407, 33, "turn 1, call"],
    [440, 556, "turn 1, tool response"], [996, 68, "turn 1, answer"], [1064, 19, "turn 2, user"],
    [1083, 41, "turn 2, answer"], [1124, 22, "turn 3, user"], [1146, 96, "schema find_duplicate, prefilled"],
    [1242, 27, "turn 3, call"], [1269, 172, "turn 3, tool response"], [1441, 46, "turn 3, answer"],
    [1487, 24, "turn 4, user"], [1511, 431, "block issue_write"], [1942, 38, "turn 4, call"],
  ] as [number, number, string][]
).map(([start, tokens, label]) => ({ start, stop: start + tokens, label }));

const WORDS = ['"', ",", '"', "input", "Schema", '"', ":", " {", ' "', "type", '"', ":", ' "', "object", '"', ",", "\n", "requir", "ed", '"', ":", " [", '"', "method", '"'];

export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** The first 36 tokens of a block of 431 and 72 others. */
function repairedByProfile(at: number): number[] {
  const next = random(5);
  const others = Array.from({ length: 395 }, (_, index) => [next() * (1 + index / 200), index + 36] as const);
  others.sort((a, b) => a[0] - b[0]);
  const leading = Array.from({ length: 36 }, (_, index) => index);
  return [...leading, ...others.slice(0, 72).map(([, index]) => index)].map((index) => at + index);
}

export interface Folded {
  states: number[];
  positions: number[];
  next: number;
}

export function foldStory(steps: number): Folded {
  const folded: Folded = { states: [], positions: [], next: 0 };
  for (const op of STORY.slice(0, steps)) {
    if (op.kind === "append" || op.kind === "splice") {
      for (let index = 0; index < op.tokens; index += 1) {
        folded.states.push(op.kind === "append" ? 0 : 1);
        folded.positions.push(folded.next++);
      }
    } else if (op.kind === "repair") {
      const at = op.at ?? 0;
      const chosen = op.tokens === 108 ? repairedByProfile(at) : Array.from({ length: op.tokens }, (_, i) => at + i);
      for (const index of chosen) folded.states[index] = 2;
    } else if (op.kind === "drop") {
      for (const [start, tokens] of op.ranges ?? []) {
        folded.states.fill(3, start, start + tokens);
        folded.positions.fill(-1, start, start + tokens);
      }
    } else {
      folded.next = 0;
      folded.states.forEach((state, index) => {
        if (state !== 3) folded.positions[index] = folded.next++;
      });
    }
  }
  return folded;
}

function countStates({ states, next }: Folded): CachePart["counts"] {
  const of = (state: number) => states.filter((other) => other === state).length;
  const dropped = of(3);
  return {
    active: states.length - dropped,
    logical: states.length,
    next_position: next,
    computed: of(0),
    spliced: of(1),
    repaired: of(2),
    dropped,
  };
}

function opCell(op: Scripted, index: number): OpCell {
  const counts = countStates(foldStory(index + 1));
  const repair = op.kind === "repair";
  return {
    index: index + 1,
    kind: op.kind,
    tokens: op.tokens,
    note: op.note,
    detail: repair ? `${op.tokens} of ${op.tokens === 108 ? 431 : 211} tokens` : "",
    turn: op.turn,
    state_id: `s${String(index + 1).padStart(2, "0")}·c62a`,
    parent_id: index === 0 ? null : `s${String(index).padStart(2, "0")}`,
    active: counts.active,
    logical: counts.logical,
    next_position: counts.next_position,
    seconds: op.kind === "drop" ? 0.0004 : op.kind === "repos" ? 0.0054 : op.tokens * 0.0025,
    dkl: repair ? 0.0082 : null,
    noise_floor: repair ? 0.0052 : null,
    declined: op.stops?.includes("declined")
      ? {
          code: "other_tokenizer",
          reason: "find_duplicate.atb was compiled by another tokenizer",
          instead: "prefilled instead (96 tokens, 240 ms)",
        }
      : null,
    stops: op.stops ?? [],
  };
}

export function cachePart(cursor = 9): CachePart {
  const counts = countStates(foldStory(cursor));
  return {
    run: "r-014",
    policy: "rolling_drop_repos",
    ops: STORY.map(opCell),
    cursor,
    revision: cursor,
    counts,
    slots: [
      { seq: 0, tokens: 1117, kind: "live", label: "this run" },
      { seq: 1, tokens: 1487, kind: "warm", label: "fork at op 4" },
      { seq: 2, tokens: 165, kind: "warm", label: "system prefix" },
      { seq: 3, tokens: 431, kind: "warm", label: "staging" },
    ],
    n_slots: 32,
    cells_used: 2839,
    n_ctx: 8192,
    arena: {
      total: 256 * 2 ** 20,
      given_out: 160 * 2 ** 20,
      asked_for: 104.5 * 2 ** 20,
      counters: { snapshots: 4, evictions: 0 },
    },
    breakpoints: { gate: true, declined: true, dkl: true, failed: false, epsilon: 0.02 },
    forks: [{ run: "r-012", at: 4, kinds: ["append", "splice", "repair", "append"], note: "policy full" }],
    policies: ["rolling_drop_repos", "rolling_drop", "full", "drop_reasoning"],
    fork_points: [{ said: 0, end: 1 }, { said: 4, end: 5 }],
    next_run: "r-015",
    drawn: 1,
  };
}

/** A program of many ops, for the timeline and the tree. */
export function longCachePart(ops: number): CachePart {
  const kinds: OpKind[] = ["append", "splice", "repair", "append", "drop", "repos"];
  const part = cachePart();
  const cell = part.ops[0] as OpCell;
  return {
    ...part,
    ops: Array.from({ length: ops }, (_, index) => ({
      ...cell,
      index: index + 1,
      kind: kinds[index % kinds.length] as OpKind,
      note: `op number ${index + 1}`,
      logical: (index + 1) * 100,
    })),
    cursor: ops,
  };
}

const STEPS: SpliceRun["steps"] = [
  { name: "header", detail: "16 fields agree", ms: 0.2 },
  { name: "rotate", detail: "+584 positions", ms: 6.1 },
  { name: "write", detail: "9.5 MiB", ms: 7.7 },
  { name: "invalidate", detail: "108 tokens", ms: 0.3 },
  ...[1, 2, 3, 4].map((piece) => ({ name: "redecode", detail: `${piece}/4, 27 tokens`, ms: 68 })),
];

export const SETTINGS: SpliceSettings = {
  tool: "issue_write",
  n_past: 648,
  context: "system",
  contract: "fixed",
  epsilon: 0.02,
  repair: "leading",
  budget: 0.25,
  k: 4,
  measure: true,
  attention: false,
};

export interface RunShape {
  layers?: number;
  heads?: number;
  steps?: number;
}

export function spliceRun({ layers = 30, heads = 3, steps = STEPS.length }: RunShape = {}): SpliceRun {
  const next = [
    ['{"', 0.863, 0.8193], ["{\n", 0.052, 0.0731], ['"owner"', 0.029, 0.0347], ["```", 0.018, 0.0277],
    ["To", 0.011, 0.0107], ['[{"', 0.008, 0.0105], ["I", 0.006, 0.0094], ['{"me', 0.004, 0.0036],
    ["all others", 0.009, 0.011],
  ] as [string, number, number][];
  return {
    id: "trial-1",
    settings: SETTINGS,
    led: [
      "issue_write at n_past 648, contract fixed, leading, 25 %",
      "Block compiled behind the system prompt, at 64.",
      "Path A: spliced; leading repair of 108 of 431 tokens, in one stretch.",
    ],
    profile: null,
    n_tokens: 431,
    anchor: 64,
    bytes: 9.5 * 2 ** 20,
    anchored: false,
    repaired: 108,
    curve_tokens: 231,
    steps: steps === STEPS.length ? STEPS : Array.from({ length: steps }, (_, i) => ({ name: "redecode", detail: `${i + 1}/${steps}, 27 tokens`, ms: 68 })),
    declined: null,
    n_layer: layers,
    n_head_kv: heads,
    n_head: heads * 3,
    ttft_ms: 284,
    measured: {
      prefill_ms: 1078,
      dkl: 0.0082,
      noise_floor: 0.0052,
      n_positions: 48,
      top1: 0.979,
      same_first: true,
      next: next.map(([text, prefill, spliced]) => ({ text, prefill, spliced })),
    },
    has_attention: false,
    source: "this conversation",
  };
}

export function splicePart(shape: RunShape = {}): SplicePart {
  return {
    tools: [
      { tool: "issue_write", tokens: 431, compiled: ["system"] },
      { tool: "issue_read", tokens: 211, compiled: ["system"] },
      { tool: "actions_list", tokens: null, compiled: [] },
    ],
    constants: { k: 4, m: 256, r_base: 0.05 },
    n_ctx: 8192,
    settings: SETTINGS,
    run: spliceRun(shape),
    unavailable: null,
    calibrated: {
      system: {
        repair: "leading",
        epsilon: 0.02,
        depths: [
          { n_past: 0, budget: 0.1 },
          { n_past: 512, budget: 0.2 },
          { n_past: 1024, budget: 0.25 },
          { n_past: 2048, budget: null },
        ],
      },
    },
    last: [
      { turn: 4, tool: "issue_write", n_past: 648, dkl: 0.0082, noise_floor: 0.0052, path: "spliced", declined: null },
      {
        turn: 3,
        tool: "find_duplicate",
        n_past: 1146,
        dkl: null,
        noise_floor: null,
        path: "prefilled",
        declined: { code: "other_tokenizer", reason: "compiled by another tokenizer", instead: "prefilled instead, 240 ms" },
      },
      { turn: 1, tool: "issue_read", n_past: 196, dkl: 0.0061, noise_floor: 0.0052, path: "spliced", declined: null },
    ],
  };
}

export const M_ROPE = {
  code: "m_rope",
  reason: "M-RoPE model; prefilled instead",
  instead:
    "Each token has three position axes, so one rotation cannot move a stored key, and llama.cpp would abort on the attempt. The answer is the one a plain run gives.",
};

/** Drift of a step: falls as the repair goes on; one cell without a value, one above the range. */
export function driftFrame(request: FrameRequest, run: SpliceRun): { reply: FrameReply; values: Float32Array } {
  const rows = run.n_layer;
  const cols = request.tensor === "attention" ? run.n_head : run.n_head_kv;
  const next = random(rows * 31 + cols * 7 + (request.tensor === "v" ? 5 : 0));
  const heads = Array.from({ length: cols }, () => 0.75 + 0.6 * next());
  const unit = request.measure === "absolute" ? 16 : 1;
  const done = request.step / Math.max(1, run.steps.length - 1);
  const values = new Float32Array(rows * cols);
  for (let layer = 0; layer < rows; layer += 1) {
    for (let head = 0; head < cols; head += 1) {
      const depth = layer / Math.max(1, rows - 1);
      const base = 0.02 + 0.26 * depth * Math.exp(-1.1 * depth * depth) + 0.05 * Math.sin(layer * 1.3 + head * 2);
      const size = Math.max(0.004, base) * (heads[head] as number) * (0.75 + 0.5 * next()) * unit * (1.9 - 0.9 * done);
      values[layer * cols + head] = request.measure === "signed" && next() < 0.5 ? -0.7 * size : size;
    }
  }
  values[4 * cols + cols - 1] = Number.NaN;
  values[(rows - 3) * cols] = 0.34 * unit;
  const most = 0.25 * unit;
  const low = request.measure === "signed" ? -most : 0;
  return {
    reply: {
      rows,
      cols,
      row_label: "layer",
      col_label: request.tensor === "attention" ? "query head" : "KV head",
      step_range: [low, 0.34 * unit],
      run_range: [low, most],
    },
    values,
  };
}

const BAR: BarPart = {
  session: "ticket-triage",
  run: "r-014",
  model: "SmolLM2-135M-Instruct",
  quantisation: "Q4_1",
  context_used: 1117,
  context_total: 8192,
  engine: "idle",
  holder: null,
  progress: null,
  notice: null,
};

export type Sent = Extract<ToKernel, { kind: "request" }>;
export interface Answer {
  result: unknown;
  buffers?: ArrayBufferView[];
}

export interface FakeKernel {
  channel: Channel;
  client: Client;
  sent: Sent[];
  /** What was asked of one method, oldest first. */
  asked(method: string): Record<string, unknown>[];
  push(parts: Partial<Parts>): void;
  /** Replies of methods answered by hand; the story answers the others at once. */
  hold(method: string): void;
  release(method: string, index?: number): void;
}

/** A drawing that says what it was asked with, and has a field and buttons of every kind. */
function drawnStory({ name, values }: Record<string, unknown>): DrawnNode {
  const told = (values as Record<string, string>) ?? {};
  return [
    "div",
    { class: "dr" },
    ["p", { id: `told-${String(name)}` }, `${String(name)} with ${JSON.stringify(told)} <b>`],
    ["label", { class: "f" }, ["span", {}, `field of ${String(name)}`], ["select", { name: "policy" }, ["option", { value: "full" }, "full"], ["option", { value: "trim", selected: true }, "trim"]]],
    ["label", { class: "c" }, ["input", { type: "checkbox", name: "repos", checked: true }], `switch of ${String(name)}`],
    ["button", { type: "button", "data-call": "cache.restore" }, `restore in ${String(name)}`],
    ["svg", { role: "group" }, ["g", { role: "button", tabindex: "0", "aria-label": `node of ${String(name)}`, "data-set": '{"op": "4"}', "data-call": "cache.plan" }, ["rect", { x: "1", d: "2" }]]],
  ];
}

function answerStory(parts: Partial<Parts>, method: string, params: Record<string, unknown>): Answer {
  const cache = parts.cache ?? cachePart();
  if (method === "cache.state") {
    const { states, positions } = foldStory(cache.cursor);
    const segments = SEGMENTS.filter((segment) => segment.start < states.length);
    return { result: { n: states.length, segments }, buffers: [Uint8Array.from(states), Int32Array.from(positions)] };
  }
  if (method === "cache.pieces") {
    const [start, stop] = [Number(params.start), Number(params.stop)];
    return { result: { pieces: Array.from({ length: stop - start }, (_, i) => WORDS[(start + i - 1535 + 2500) % WORDS.length]) } };
  }
  if (method === "cache.fork") return { result: { run: "r-015", rerun_ops: 1, rerun_tokens: 38, at: Number(params.at), note: "Turn 4 is asked again." } };
  if (method === "cache.view" || method === "cache.study") return { result: drawnStory(params) };
  if (method === "splice.frame" && parts.splice?.run) {
    const { reply, values } = driftFrame(params as unknown as FrameRequest, parts.splice.run);
    // Every head of the first two layers is within its floor, and no other.
    const floor = values.map((value, index) => (index < 2 * reply.cols ? 2 * Math.abs(value) : Math.abs(value) / 5));
    return { result: reply, buffers: params.tensor === "v" ? [values] : [values, floor.map((value) => value || 0)] };
  }
  if (method === "splice.run") return { result: spliceRun() };
  return { result: {} };
}

/** A kernel in memory that tells the story; it answers after the caller's turn, as a wire does. */
export function fakeKernel(first: Partial<Parts> = {}): FakeKernel {
  let parts: Partial<Parts> = { bar: BAR, cache: cachePart(), splice: splicePart(), ...first };
  let hear: (message: ToView, buffers: readonly DataView[]) => void = () => undefined;
  let revision = 0;
  const sent: Sent[] = [];
  const held = new Map<string, Sent[]>();

  const reply = ({ id, method, params }: Sent) => {
    const { result, buffers = [] } = answerStory(parts, method, params);
    const views = buffers.map((buffer) => new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength));
    hear({ kind: "reply", id, ok: true, result }, views);
  };
  const push = (changed: Partial<Parts>) => {
    parts = { ...parts, ...changed };
    revision += 1;
    hear({ kind: "parts", revision, parts: changed }, []);
  };
  const act = ({ method, params }: Sent) => {
    const cache = parts.cache;
    if (!cache) return;
    if (method === "cache.goto") push({ cache: { ...cachePart(Number(params.n)), ops: cache.ops } });
    if (method === "cache.next_breakpoint") {
      const stop = cache.ops.find((op) => op.index > cache.cursor && op.stops.length > 0);
      push({ cache: cachePart(stop?.index ?? cache.ops.length) });
    }
    if (method === "cache.set_breakpoints") {
      push({ cache: { ...cache, breakpoints: params as CachePart["breakpoints"] } });
    }
  };
  const channel: Channel = {
    send(message) {
      if (message.kind === "hello") queueMicrotask(() => push(parts));
      if (message.kind !== "request") return;
      sent.push(message);
      const waiting = held.get(message.method);
      if (waiting) waiting.push(message);
      else
        queueMicrotask(() => {
          act(message);
          reply(message);
        });
    },
    on(callback) {
      hear = callback;
      return () => {
        hear = () => undefined;
      };
    },
  };
  return {
    channel,
    client: connect(channel),
    sent,
    asked: (method) => sent.filter((message) => message.method === method).map((message) => message.params),
    push,
    hold: (method) => void held.set(method, []),
    release(method, index = 0) {
      const [message] = held.get(method)?.splice(index, 1) ?? [];
      if (!message) return;
      act(message);
      reply(message);
    },
  };
}

