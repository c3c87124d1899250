/**
 * Frames of a run, one per step, fetched ahead and kept. A frame of another run, tensor or measure than the one
 * that is shown now is dropped when it arrives.
 */
import { signal, type ReadonlySignal } from "@preact/signals";
import { numbers } from "../../canvas/walk";
import { problemOf, type Client } from "../../client";
import type { ErrorInfo, FrameReply, FrameRequest } from "../../protocol";

export type FilmQuery = Omit<FrameRequest, "step">;

export interface Frame {
  reply: FrameReply;
  values: Float32Array;
  /** Noise floor of each cell, where it was measured. */
  floor: Float32Array | null;
}

export interface Film {
  /** Counts the frames that have arrived, for what draws from `frame`. */
  readonly arrived: ReadonlySignal<number>;
  readonly problem: ReadonlySignal<ErrorInfo | null>;
  /** Show a query of `steps` steps; asks for `step` first, then for the rest. */
  show(query: FilmQuery, step: number, steps: number): void;
  frame(step: number): Frame | undefined;
  close(): void;
}

/** Requests under way at once: enough to keep the wire busy, few enough that a change of query is soon heard. */
const AT_ONCE = 3;
/** Frames that are kept of earlier queries: two films of 200 steps. */
const MOST_KEPT = 400;
/** Least time between two frames of a film that plays. */
export const FRAME_MS = 50;

function keyOf(query: FilmQuery): string {
  return JSON.stringify([query.run, query.tensor, query.measure]);
}

/** Values of a reply's buffer, whatever its alignment. */
export function frameValues(reply: FrameReply, buffer: DataView | undefined): Float32Array {
  const wanted = reply.rows * reply.cols;
  if (!buffer || buffer.byteLength !== wanted * 4) {
    throw new Error(`a frame of ${reply.rows} × ${reply.cols} came with ${buffer?.byteLength ?? 0} bytes`);
  }
  const bytes = new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  return new Float32Array(bytes.slice().buffer);
}

/** Steps in the order in which they are wanted: from `step` on, then those before it, nearest first. */
export function fetchOrder(step: number, steps: number): number[] {
  return [...numbers(step, steps), ...numbers(0, Math.min(step, steps)).reverse()];
}

export function openFilm(client: Pick<Client, "request">): Film {
  const arrived = signal(0);
  const problem = signal<ErrorInfo | null>(null);
  const kept = new Map<string, Frame>();
  let query: FilmQuery | null = null;
  let key = "";
  let queue: number[] = [];
  let underWay = new Set<number>();

  const keep = (step: number, frame: Frame) => {
    kept.set(`${key} ${step}`, frame);
    for (const old of kept.keys()) {
      if (kept.size <= MOST_KEPT) break;
      kept.delete(old);
    }
    arrived.value += 1;
  };
  const ask = async (step: number, asked: string, current: FilmQuery, mine: Set<number>) => {
    mine.add(step);
    try {
      const { result, buffers } = await client.request<FrameReply>("splice.frame", { ...current, step });
      const floor = buffers[1] ? frameValues(result, buffers[1]) : null;
      if (asked === key) keep(step, { reply: result, values: frameValues(result, buffers[0]), floor });
    } catch (error) {
      if (asked === key) {
        queue = [];
        problem.value = problemOf(error);
      }
    }
    mine.delete(step);
    if (asked === key) fill();
  };
  const fill = () => {
    while (query && queue.length > 0 && underWay.size < AT_ONCE) {
      const step = queue.shift() as number;
      if (!kept.has(`${key} ${step}`) && !underWay.has(step)) void ask(step, key, query, underWay);
    }
  };
  return {
    arrived,
    problem,
    show(next, step, steps) {
      const nextKey = keyOf(next);
      if (nextKey !== key) {
        key = nextKey;
        query = next;
        underWay = new Set();
        problem.value = null;
      } else if (problem.value) {
        return;
      }
      queue = fetchOrder(step, steps).filter((at) => !kept.has(`${key} ${at}`) && !underWay.has(at));
      fill();
    },
    frame: (step) => kept.get(`${key} ${step}`),
    close() {
      key = "";
      query = null;
      queue = [];
    },
  };
}
