/** What kernel and side panel say to each other; the kernel's half is `nexus_lab/lab/status_comm.py`. */
import type { BarPart, DecisionRow } from "../../../frontend/src/protocol";

export type LastDecision = Pick<DecisionRow, "request" | "decision" | "tool" | "margin" | "tau" | "turn">;

/** The bar is null when nexus_lab is loaded, but no workbench is open. */
export interface Status {
  bar: BarPart | null;
  decision: LastDecision | null;
}

/** The parts that changed; the next come only after these were acknowledged. */
export interface PartsMessage {
  kind: "parts";
  revision: number;
  parts: Partial<Status>;
}

export type ToKernel = { kind: "hello" } | { kind: "ack"; revision: number };

/** What the panel shows. */
export type Situation =
  | { kind: "no-notebook" }
  | { kind: "no-kernel"; notebook: string }
  | { kind: "not-loaded"; notebook: string }
  | { kind: "connecting"; notebook: string }
  | { kind: "following"; notebook: string; status: Status };

export function isParts(data: unknown): data is PartsMessage {
  const message = data as Partial<PartsMessage> | null;
  return typeof message === "object" && message?.kind === "parts" && typeof message.parts === "object";
}
