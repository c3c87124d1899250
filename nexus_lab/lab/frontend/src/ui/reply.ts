import { useEffect, useState } from "preact/hooks";
import { problemOf, type Client } from "../client";
import type { ErrorInfo } from "../protocol";

/**
 * What a method answers to these parameters, asked again whenever they or `version` change; null while it is not
 * known, and for parameters of null. An answer to earlier parameters is never given.
 */
export function useReply<T>(
  client: Client,
  method: string,
  params: object | null,
  version?: unknown,
): [T | null, ErrorInfo | null] {
  const asked = params && JSON.stringify(params);
  const [found, setFound] = useState<{ asked: string; result: T } | null>(null);
  const [problem, setProblem] = useState<ErrorInfo | null>(null);
  useEffect(() => {
    setProblem(null);
    if (asked === null) return;
    let current = true;
    client.request<T>(method, JSON.parse(asked) as object).then(
      ({ result }) => current && setFound({ asked, result }),
      (error: unknown) => current && setProblem(problemOf(error)),
    );
    return () => {
      current = false;
    };
  }, [client, method, asked, version]);
  return [problem === null && found?.asked === asked ? found.result : null, problem];
}
