import { useRef, useState } from "preact/hooks";
import { problemOf, type Client } from "../client";
import type { ErrorInfo } from "../protocol";

export interface Action<T> {
  /** Null when it failed; the reason is then in `fault`. */
  run(params?: object): Promise<T | null>;
  busy: boolean;
  fault: ErrorInfo | null;
  clear(): void;
}

/** One method of the kernel as a button sees it: running or not, and what went wrong last. */
export function useAction<T = unknown>(client: Client, method: string): Action<T> {
  const [running, setRunning] = useState(0);
  const [problem, setProblem] = useState<ErrorInfo | null>(null);
  const newest = useRef(0);
  const run = async (params: object = {}): Promise<T | null> => {
    const mine = ++newest.current;
    setRunning((n) => n + 1);
    setProblem(null);
    try {
      const { result } = await client.request<T | null>(method, params);
      // A method without a result has still worked.
      return result ?? ({} as T);
    } catch (error) {
      if (mine === newest.current) setProblem(problemOf(error));
      return null;
    } finally {
      setRunning((n) => n - 1);
    }
  };
  return { run, busy: running > 0, fault: problem, clear: () => setProblem(null) };
}
