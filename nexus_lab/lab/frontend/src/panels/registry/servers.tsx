/** The servers: how each stands, what its tools cost, and what to do about one that failed. */
import type { Signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { Client } from "../../client";
import { count, int, NONE } from "../../format";
import type { RegistryPart, ServerRow, Status } from "../../protocol";
import { Box, Button, Empty, Field, Note, Problem, StatusMark, TextField, useAction } from "../../ui";

function standing(server: ServerRow, failing: number): [Status, string] {
  if (server.status === "failed") return ["bad", server.problem?.message ?? "failed"];
  if (server.status === "starting") return ["none", "starting…"];
  if (server.status === "stopped") return ["none", "stopped"];
  if (failing) return ["warn", `${server.status}, ${failing === 1 ? "1 check fails" : `${int(failing)} checks fail`}`];
  return server.status === "listed" ? ["none", "listed, not started"] : ["ok", "ready"];
}

const TRANSPORT: Record<ServerRow["transport"], string> = { stdio: "stdio", http: "HTTP", file: "file" };

function cost(row: { schema_tokens: number | null; signature_tokens: number | null }): string {
  if (row.schema_tokens === null && row.signature_tokens === null) return "";
  return `${int(row.schema_tokens)} / ${int(row.signature_tokens)}`;
}

/** Variables written one a line: NAME=value sets, a bare NAME removes. */
export function readVariables(text: string): Record<string, string | null> {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      return at < 0 ? [line.trim(), null] : [line.slice(0, at).trim(), line.slice(at + 1)];
    }),
  );
}

/** Starts a server again: as it was, or with another command line or other variables. */
function Restart({ client, server, verb }: { client: Client; server: ServerRow; verb: string }) {
  const start = useAction(client, "registry.retry");
  const [line, setLine] = useState<string | null>(null);
  const [text, setText] = useState("");
  const open = line !== null;
  const run = async () => {
    const changes = open ? { line, env: readVariables(text) } : {};
    if ((await start.run({ name: server.name, ...changes })) !== null) setText("");
  };
  return (
    <>
      {open && (
        <div class="stack tight">
          <Field label={server.transport === "http" ? "URL" : "Command with arguments"}>
            <TextField value={line} onValue={setLine} />
          </Field>
          {server.transport === "stdio" && (
            <Field label="Variables to change: NAME=value sets, NAME alone removes">
              <textarea class="mono" rows={2} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
            </Field>
          )}
          {server.variables.length > 0 && <p class="tiny muted anywhere">Set now: {server.variables.join(", ")}</p>}
        </div>
      )}
      <div class="row acts">
        <Button disabled={start.busy} onClick={() => void run()}>
          {start.busy ? "Starting…" : open ? `${verb} with changes` : verb}
        </Button>
        {server.line !== null && (
          <Button quiet aria-expanded={open} onClick={() => setLine(open ? null : server.line)}>
            {open ? "No changes" : "Change…"}
          </Button>
        )}
      </div>
      <Problem fault={start.fault} />
    </>
  );
}

function FailedServer({ client, server }: { client: Client; server: ServerRow }) {
  const { problem, last_line: line } = server;
  return (
    <Note status="bad" class="small" title={`${server.name} did not start`}>
      {problem && <p>{problem.message}</p>}
      {line && (
        <p>
          Last line: <code>{line}</code>
        </p>
      )}
      {problem?.next_step && <p>{problem.next_step}</p>}
      <p>Its tools are left out of the index.</p>
      <Restart client={client} server={server} verb="Retry" />
    </Note>
  );
}

function ChosenServer({ client, server }: { client: Client; server: ServerRow }) {
  const stop = useAction(client, "registry.stop");
  const runs = server.transport !== "file" && (server.status === "ready" || server.status === "starting");
  const rests = server.status === "stopped" || server.status === "listed";
  if (!server.command && !runs && !rests) return null;
  return (
    <div class="chosen-server small">
      {server.command && <code class="anywhere">{server.command}</code>}
      {runs && (
        <div class="row acts">
          <Button disabled={stop.busy} onClick={() => void stop.run({ name: server.name })}>
            Stop {server.name}
          </Button>
        </div>
      )}
      {rests && server.transport !== "file" && <Restart client={client} server={server} verb={`Start ${server.name}`} />}
      <Problem fault={stop.fault} />
    </div>
  );
}

function ServerButton({ name, transport, tools, tokens, mark, pressed, onPick }: {
  name: string;
  transport?: string;
  tools: string;
  tokens: string;
  mark?: [Status, string];
  pressed: boolean;
  onPick: () => void;
}) {
  return (
    <button type="button" class="srv" aria-pressed={pressed} onClick={onPick}>
      <span class="clip">{transport ? <><b>{name}</b> <span class="muted">{transport}</span></> : name}</span>
      <span class="num">{tools}</span>
      {mark ? <StatusMark status={mark[0]} title={mark[1]}>{mark[1]}</StatusMark> : <span class="muted">schema / signature</span>}
      <span class="num muted">{tokens}</span>
    </button>
  );
}

export function ServersColumn({ client, part, chosen }: { client: Client; part: RegistryPart; chosen: Signal<string | null> }) {
  const running = part.servers.filter(({ status }) => status === "ready").length;
  const failing = new Map<string, number>();
  for (const tool of part.tools) {
    if (tool.checks.length) failing.set(tool.server, (failing.get(tool.server) ?? 0) + 1);
  }
  const selected = part.servers.find(({ name }) => name === chosen.value);
  return (
    <>
      <Box title="Servers" tools={<span class="small muted">{int(running)} of {int(part.servers.length)} ready</span>} flush>
        <div class="servers">
          <ServerButton
            name="All servers"
            tools={count(part.tools.length, "tool")}
            tokens={cost(part)}
            pressed={!selected}
            onPick={() => (chosen.value = null)}
          />
          {part.servers.map((server) => (
            <ServerButton
              key={server.name}
              name={server.name}
              transport={TRANSPORT[server.transport]}
              tools={server.tools ? count(server.tools, "tool") : NONE}
              tokens={server.tools ? cost(server) : ""}
              mark={standing(server, failing.get(server.name) ?? 0)}
              pressed={server.name === chosen.value}
              onPick={() => (chosen.value = server.name === chosen.value ? null : server.name)}
            />
          ))}
        </div>
        {part.servers.length === 0 && (
          <Empty title="No server" tight>
            Load tools below.
          </Empty>
        )}
        {selected && <ChosenServer key={selected.name} client={client} server={selected} />}
      </Box>
      {part.servers
        .filter(({ status }) => status === "failed")
        .map((server) => (
          <FailedServer key={server.name} client={client} server={server} />
        ))}
      {part.problems.length > 0 && (
        <Note status="warn" class="small" title={`Left out or amiss: ${int(part.problems.length)}`}>
          {part.problems.slice(0, 20).map(({ text }) => (
            <p key={text} class="anywhere">
              {text}
            </p>
          ))}
        </Note>
      )}
    </>
  );
}
