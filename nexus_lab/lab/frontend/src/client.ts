/**
 * The view's end of the wire: requests with replies, one signal per part, and an acknowledgement for every parts
 * message once it has been drawn. The channel under it is anywidget's comm, the Lab extension's, or a test's.
 */
import { batch, computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type { ErrorInfo, KeptItems, PanelName, Parts, ToKernel, ToView } from "./protocol";

export interface Channel {
  send(message: ToKernel): void;
  /** Returns a function that ends the subscription. */
  on(callback: (message: ToView, buffers: readonly DataView[]) => void): () => void;
  /** Calls back once the kernel's end is gone. */
  onClosed?(callback: () => void): () => void;
}

export interface Reply<T> {
  result: T;
  buffers: readonly DataView[];
}

export interface Pending {
  id: number;
  method: string;
}

export type PartSignals = { readonly [Name in keyof Parts]: ReadonlySignal<Parts[Name] | null> };
export type Theme = "light" | "dark";

export interface Client {
  /** Rejects with an error that `problemOf` turns into the kernel's `ErrorInfo`. */
  request<T>(method: string, params?: object): Promise<Reply<T>>;
  readonly told: PartSignals;
  /** Requests without a reply yet, oldest first. */
  readonly pending: ReadonlySignal<readonly Pending[]>;
  /** False once the kernel is gone. */
  readonly alive: ReadonlySignal<boolean>;
  /** Works at once, also while a request of this view has not reached the bar yet. */
  stop(): void;
  /** Whether something runs that Stop would end. */
  readonly stoppable: ReadonlySignal<boolean>;
  close(): void;

  // What belongs to one view; `openView` gives each its own.
  readonly theme: Signal<Theme>;
  /** True where the view was given a theme that the page around it has not. */
  readonly ownColours: Signal<boolean>;
  readonly panel: Signal<PanelName>;
  readonly live: Signal<string>;
  /** Speaks in the live region. */
  say(text: string): void;
  /** A signal that outlives the panel's being shown: drafts, filters, selections. */
  keep<T>(key: string, initial: T): Signal<T>;
}

const PROBLEM = Symbol("problem");
type KernelError = Error & { [PROBLEM]: ErrorInfo };

function kernelError(info: ErrorInfo): KernelError {
  return Object.assign(new Error(info.message), { [PROBLEM]: info });
}

/** What went wrong, typed, whatever was thrown. */
export function problemOf(error: unknown): ErrorInfo {
  if (error instanceof Error && PROBLEM in error) return (error as KernelError)[PROBLEM];
  const message = error instanceof Error ? error.message : String(error);
  return { type: "ViewError", message, next_step: null };
}

const GONE: ErrorInfo = {
  type: "KernelGone",
  message: "The kernel behind this view is gone.",
  next_step: "Run the cell again.",
};

/** Calls back after the next frame was painted; where no frame comes (a hidden page), after a second. */
export function afterFrame(callback: () => void): void {
  let done = false;
  const once = () => {
    if (done) return;
    done = true;
    clearTimeout(timer);
    callback();
  };
  const timer = setTimeout(once, 1000);
  requestAnimationFrame(() => setTimeout(once, 0));
}

/** Requests that keep the engine or a server busy, so that Stop lights up before the bar has heard of them. */
const HOLDING =
  /^(models\.(load|unload|measure)|registry\.(load_file|load_text|start|connect|retry)|routing\.route|cache\.(goto|next_breakpoint|fork|restore|try_restore|forget)|splice\.run|agent\.ask|session\.replay)$/;

/** A part with those items of its lists that the view has had before. */
function joined(had: unknown, part: unknown, kept: Record<string, KeptItems>): unknown {
  const whole = { ...(part as Record<string, unknown[]>) };
  for (const [field, [skip, front, back, drop]] of Object.entries(kept)) {
    const old = (had as typeof whole)[field]!;
    const end = old.length - drop;
    whole[field] = [...old.slice(skip, skip + front), ...whole[field]!, ...old.slice(end - back, end)];
  }
  return whole;
}

export function connect(channel: Channel): Client {
  const parts: { [Name in keyof Parts]: Signal<Parts[Name] | null> } = {
    bar: signal(null),
    models: signal(null),
    registry: signal(null),
    routing: signal(null),
    cache: signal(null),
    splice: signal(null),
    agent: signal(null),
    session: signal(null),
  };
  const pending = signal<readonly Pending[]>([]);
  const alive = signal(true);
  const waiting = new Map<number, { resolve(reply: Reply<unknown>): void; reject(error: Error): void }>();
  let last = 0;
  let revision = 0;
  let greeting = false;

  const greet = () => {
    if (!greeting) channel.send({ kind: "hello" });
    greeting = true;
  };
  const takeParts = (message: Extract<ToView, { kind: "parts" }>) => {
    // Of a message after a gap, nothing is taken: the next greeting brings it whole.
    if (message.kept && message.revision !== revision + 1) return greet();
    if (!message.kept) greeting = false;
    revision = message.revision;
    batch(() => {
      for (const name of Object.keys(message.parts) as (keyof Parts)[]) {
        if (!(name in parts)) continue;
        const target = parts[name] as Signal<unknown>;
        const [part, kept] = [message.parts[name], message.kept?.[name]];
        target.value = kept ? joined(target.peek(), part, kept) : part;
      }
    });
  };
  const settle = (id: number) => {
    const entry = waiting.get(id);
    waiting.delete(id);
    pending.value = pending.value.filter((request) => request.id !== id);
    return entry;
  };
  const off = channel.on((message, buffers) => {
    if (message.kind === "parts") {
      takeParts(message);
      const ack = { kind: "ack", revision: message.revision } as const;
      afterFrame(() => {
        if (alive.peek()) channel.send(ack);
      });
    } else if (message.kind === "reply") {
      const entry = settle(message.id);
      if (message.ok) entry?.resolve({ result: message.result, buffers });
      else entry?.reject(kernelError(message.error));
    }
  });
  const leave = () => {
    alive.value = false;
    for (const id of [...waiting.keys()]) settle(id)?.reject(kernelError(GONE));
  };
  const offClosed = channel.onClosed?.(leave);

  const request = <T>(method: string, params: object = {}): Promise<Reply<T>> => {
    if (!alive.peek()) return Promise.reject(kernelError(GONE));
    const id = ++last;
    const reply = new Promise<Reply<unknown>>((resolve, reject) => waiting.set(id, { resolve, reject }));
    pending.value = [...pending.value, { id, method }];
    channel.send({ kind: "request", id, method, params: params as Record<string, unknown> });
    return reply as Promise<Reply<T>>;
  };
  const stoppable = computed(() => {
    const engine = parts.bar.value?.engine;
    const held = engine !== undefined && engine !== "unloaded" && engine !== "idle";
    return held || pending.value.some(({ method }) => HOLDING.test(method));
  });

  const shared = {
    request,
    told: parts,
    pending,
    alive,
    stoppable,
    stop: () => void request("stop").catch(() => undefined),
    close: () => {
      leave();
      off();
      offClosed?.();
    },
  };
  greet();
  return { ...shared, ...viewState() };
}

function viewState() {
  const store = new Map<string, Signal<unknown>>();
  const live = signal("");
  return {
    theme: signal<Theme>("light"),
    ownColours: signal(false),
    panel: signal<PanelName>("registry"),
    live,
    say: (text: string) => {
      live.value = text;
    },
    keep: <T>(key: string, initial: T): Signal<T> => {
      let found = store.get(key) as Signal<T> | undefined;
      if (!found) {
        found = signal(initial);
        store.set(key, found as Signal<unknown>);
      }
      return found;
    },
  };
}

/** The same connection with a view's own panel, drafts and live region. */
export function openView(client: Client): Client {
  return { ...client, ...viewState() };
}
