/** Token states and pieces from the kernel: states once per revision, pieces for the window alone. */
import { effect, signal, type ReadonlySignal } from "@preact/signals";
import { problemOf, type Client } from "../../client";
import type { CacheStateReply, ErrorInfo } from "../../protocol";

export interface TokenStates {
  revision: number;
  states: Uint8Array;
  positions: Int32Array;
  segments: CacheStateReply["segments"];
}

export interface TokenSource {
  readonly states: ReadonlySignal<TokenStates | null>;
  /** Pieces by logical index, as far as they are known. */
  readonly pieces: ReadonlySignal<ReadonlyMap<number, string>>;
  readonly problem: ReadonlySignal<ErrorInfo | null>;
  wantPieces(start: number, stop: number): void;
  close(): void;
}

/** Buffers of a state reply; refuses those that do not fit its count. */
export function readStates(reply: CacheStateReply, buffers: readonly DataView[], revision: number): TokenStates {
  const [states, positions] = buffers;
  if (states?.byteLength !== reply.n || positions?.byteLength !== reply.n * 4) {
    throw new Error(`the state of ${reply.n} tokens came with buffers of another length`);
  }
  const copy = (view: DataView) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice();
  return {
    revision,
    states: copy(states),
    positions: new Int32Array(copy(positions).buffer),
    segments: reply.segments,
  };
}

export function openTokens(client: Pick<Client, "request" | "told">): TokenSource {
  const states = signal<TokenStates | null>(null);
  const pieces = signal<ReadonlyMap<number, string>>(new Map());
  const problem = signal<ErrorInfo | null>(null);
  let asked: string | null = null;
  let window: [number, number] | null = null;
  let asking = false;

  const fetchStates = async (key: string, revision: number) => {
    try {
      const { result, buffers } = await client.request<CacheStateReply>("cache.state");
      if (asked !== key) return;
      states.value = readStates(result, buffers, revision);
      problem.value = null;
    } catch (error) {
      if (asked === key) problem.value = problemOf(error);
    }
  };
  const fetchPieces = async () => {
    if (asking) return;
    asking = true;
    while (window) {
      const [start, stop] = window;
      window = null;
      const key = asked;
      try {
        const { result } = await client.request<{ pieces: string[] }>("cache.pieces", { start, stop });
        if (asked === key) pieces.value = new Map(result.pieces.map((piece, index) => [start + index, piece]));
      } catch (error) {
        problem.value = problemOf(error);
      }
    }
    asking = false;
  };
  const stopEffect = effect(() => {
    const part = client.told.cache.value;
    if (!part) return;
    const key = `${part.run} ${part.revision}`;
    if (key === asked) return;
    asked = key;
    void fetchStates(key, part.revision);
  });
  return {
    states,
    pieces,
    problem,
    wantPieces(start, stop) {
      window = [start, stop];
      void fetchPieces();
    },
    close: stopEffect,
  };
}
