/** What waits for the user: one call, with where each value comes from. */
import { useEffect, useState } from "preact/hooks";
import type { Client } from "../../client";
import type { AgentPart, ErrorInfo } from "../../protocol";
import { Button, Check, Problem, StatusMark, useAction } from "../../ui";

type Request = NonNullable<AgentPart["approval"]>;

/** The arguments that were typed, or what is wrong with them. */
export function readArguments(text: string): { value: Record<string, unknown> } | { error: ErrorInfo } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { error: { type: "JsonError", message: `This is no JSON: ${message}`, next_step: "Mend it, or choose Undo edits." } };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { error: { type: "JsonError", message: "Arguments are an object.", next_step: 'Write them as {"name": value}.' } };
  }
  return { value: value as Record<string, unknown> };
}

function Sources({ request }: { request: Request }) {
  return (
    <table class="args" aria-label={`Arguments of ${request.tool}`}>
      <thead class="sr">
        <tr>
          <th scope="col">Argument</th>
          <th scope="col">Value</th>
          <th scope="col">Where it comes from</th>
        </tr>
      </thead>
      <tbody>
        {Object.entries(request.arguments).map(([name, value]) => {
          const source = request.sources[name];
          return (
            <tr key={name}>
              <td class="mono">{name}</td>
              <td class="mono anywhere">{JSON.stringify(value)}</td>
              <td class="muted">
                {source ?? <StatusMark status="warn" wrap>not found in the conversation</StatusMark>}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

export function Approval({ client, request }: { client: Client; request: Request }) {
  const [remember, setRemember] = useState(false);
  const [draft, setDraft] = useState<string | null>(null);
  const [wrong, setWrong] = useState<ErrorInfo | null>(null);
  const answer = useAction(client, "agent.approve");
  const tool = client.told.registry.value?.tools.find(({ name }) => name === request.tool);
  const reads = tool?.read_only ?? false;
  useEffect(() => {
    client.say(`Turn ${request.turn} waits: run ${request.tool} on ${request.server}?`);
  }, [request.id]);

  const run = () => {
    setWrong(null);
    if (draft === null) return void answer.run({ id: request.id, allow: true, remember });
    const read = readArguments(draft);
    if ("error" in read) return setWrong(read.error);
    void answer.run({ id: request.id, allow: true, remember, arguments: read.value });
  };
  const original = JSON.stringify(request.arguments, null, 2);
  return (
    <div class="approve" role="group" aria-label={`Approve ${request.tool}`}>
      <div class="anywhere">
        <b>{reads ? "Run this tool?" : "Run a tool that writes?"}</b> <span class="mono">{request.tool}</span>{" "}
        <span class="muted">
          on {request.server} {reads ? "only reads" : "may change data"}
        </span>
      </div>
      {draft === null ? (
        <Sources request={request} />
      ) : (
        <label class="f">
          <span>Arguments as JSON</span>
          <textarea
            class="mono"
            rows={Math.min(14, original.split("\n").length + 1)}
            spellcheck={false}
            value={draft}
            aria-invalid={wrong !== null}
            onInput={(event) => setDraft(event.currentTarget.value)}
          />
        </label>
      )}
      <Problem fault={wrong ?? answer.fault} />
      <div class="row">
        <Button primary disabled={answer.busy} onClick={run}>
          Run once
        </Button>
        {draft === null ? (
          <Button disabled={answer.busy} onClick={() => setDraft(original)}>
            Edit arguments
          </Button>
        ) : (
          <Button
            disabled={answer.busy}
            onClick={() => {
              setDraft(null);
              setWrong(null);
            }}
          >
            Undo edits
          </Button>
        )}
        <Button disabled={answer.busy} onClick={() => void answer.run({ id: request.id, allow: false, remember: false })}>
          Refuse
        </Button>
        <span class="grow" />
        <Check small checked={remember} onCheck={setRemember}>
          allow {request.tool} for this session
        </Check>
      </div>
    </div>
  );
}
