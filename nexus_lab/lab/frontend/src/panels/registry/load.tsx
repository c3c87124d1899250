/** Four ways to load tools. Nothing is started that was not chosen. */
import { useState } from "preact/hooks";
import type { Client } from "../../client";
import { count } from "../../format";
import type { ListedServer, LoadReply } from "../../protocol";
import { Box, Button, Check, Empty, Field, Problem, Segmented, Select, StatusMark, TextField, useAction } from "../../ui";

type Way = "servers" | "running" | "file" | "text";

const WAYS: { value: Way; label: string }[] = [
  { value: "servers", label: "mcpServers JSON" },
  { value: "running", label: "Running MCP server" },
  { value: "file", label: "Tool list or OpenAPI file" },
  { value: "text", label: "Clipboard or text" },
];

/** Whether a text lists servers rather than tools. */
export function listsServers(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && ("mcpServers" in value || "servers" in value);
  } catch {
    return false;
  }
}

export function Loaded({ reply }: { reply: LoadReply | null }) {
  if (!reply?.problems) return null;
  return (
    <div class="small stack tight" role="status">
      {reply.added !== undefined && (
        <StatusMark status={reply.added ? "ok" : "warn"} wrap>
          {count(reply.added, "tool")} added
        </StatusMark>
      )}
      {reply.problems.map((problem) => (
        <StatusMark key={problem} status="warn" wrap>
          {problem}
        </StatusMark>
      ))}
    </div>
  );
}

/** One way to load: its run, whether it is under way, and what came of it. */
function useLoading(client: Client, method: string) {
  const [reply, setReply] = useState<LoadReply | null>(null);
  const load = useAction<LoadReply>(client, method);
  const run = async (params: object) => {
    if (load.busy) return;
    setReply(null);
    setReply(await load.run(params));
  };
  const outcome = (
    <>
      <Problem fault={load.fault} />
      <Loaded reply={reply} />
    </>
  );
  return { busy: load.busy, run, outcome };
}

interface Source {
  path?: string;
  text?: string;
}

/** What was read, to choose from; starting is a second step. */
function Chooser({ client, source, servers, onDone }: {
  client: Client;
  source: Source;
  servers: ListedServer[];
  onDone: (reply: LoadReply | null) => void;
}) {
  const [names, setNames] = useState<readonly string[]>([]);
  const start = useAction<LoadReply>(client, "registry.start");
  const run = async () => {
    const reply = await start.run({ ...source, names: [...names] });
    if (reply) onDone(reply);
  };
  if (servers.length === 0) return <Empty title="No server is listed there" tight />;
  return (
    <fieldset class="chooser stack tight">
      <legend class="small">
        <b>{count(servers.length, "server")}</b> <span class="muted">nothing was started yet</span>
      </legend>
      {servers.map(({ name, transport, command }) => (
        <div key={name}>
          <Check
            checked={names.includes(name)}
            onCheck={(on) => setNames(on ? [...names, name] : names.filter((other) => other !== name))}
          >
            <b class="clip">{name}</b> <span class="muted">{transport === "http" ? "HTTP" : transport}</span>
          </Check>
          <code class="tiny muted anywhere command">{command}</code>
        </div>
      ))}
      <div class="row acts">
        <Button primary disabled={names.length === 0 || start.busy} onClick={() => void run()}>
          {start.busy ? "Starting…" : names.length ? `Start ${count(names.length, "server")}` : "Start"}
        </Button>
      </div>
      <Problem fault={start.fault} />
    </fieldset>
  );
}

function FromServers({ client, text }: { client: Client; text?: string }) {
  const path = client.keep("registry.servers-path", "");
  const [found, setFound] = useState<{ source: Source; servers: ListedServer[] } | null>(null);
  const [reply, setReply] = useState<LoadReply | null>(null);
  const list = useAction<LoadReply & { servers: ListedServer[] }>(client, "registry.list_servers");
  const source: Source = text === undefined ? { path: path.value.trim() } : { text };
  const empty = text === undefined ? source.path === "" : text.trim() === "";
  const read = async () => {
    if (empty || list.busy) return;
    const result = await list.run(source);
    setReply(result);
    setFound(result && { source, servers: result.servers });
  };
  return (
    <>
      {text === undefined && (
        <Field label="Path">
          <TextField value={path.value} placeholder="~/.config/mcp/servers.json" onValue={(value) => (path.value = value)} onEnter={() => void read()} />
        </Field>
      )}
      <div class="row">
        <Button disabled={empty || list.busy} onClick={() => void read()}>
          Read, then choose
        </Button>
      </div>
      <Problem fault={list.fault} />
      {found && (
        <Chooser
          client={client}
          source={found.source}
          servers={found.servers}
          onDone={(done) => {
            setFound(null);
            setReply(done);
          }}
        />
      )}
      <Loaded reply={reply} />
    </>
  );
}

function FromRunning({ client }: { client: Client }) {
  const name = client.keep("registry.connect-name", "");
  const address = client.keep("registry.connect-address", "");
  const kind = client.keep<"command" | "url">("registry.connect-kind", "command");
  const connect = useLoading(client, "registry.connect");
  const empty = name.value.trim() === "" || address.value.trim() === "";
  const run = () => empty || void connect.run({ name: name.value.trim(), [kind.value]: address.value.trim() });
  return (
    <>
      <Segmented
        label="Reached by"
        value={kind.value}
        options={[
          { value: "command", label: "command" },
          { value: "url", label: "URL" },
        ]}
        onPick={(value) => (kind.value = value)}
      />
      <Field label="Name">
        <TextField value={name.value} placeholder="files" onValue={(value) => (name.value = value)} />
      </Field>
      <Field label={kind.value === "command" ? "Command with arguments" : "URL"}>
        <TextField
          value={address.value}
          placeholder={kind.value === "command" ? "python -m my_server" : "http://127.0.0.1:8000/mcp"}
          onValue={(value) => (address.value = value)}
          onEnter={run}
        />
      </Field>
      {kind.value === "command" && <p class="tiny muted">The command is run on this machine.</p>}
      <div class="row">
        <Button disabled={empty || connect.busy} onClick={run}>
          {connect.busy ? "Connecting…" : "Connect"}
        </Button>
      </div>
      {connect.outcome}
    </>
  );
}

function FromFile({ client }: { client: Client }) {
  const path = client.keep("registry.file-path", "");
  const load = useLoading(client, "registry.load_file");
  const chosen = path.value.trim();
  const run = () => chosen && void load.run({ path: chosen });
  return (
    <>
      <Field label="Path">
        <TextField value={path.value} placeholder="tools.json" onValue={(value) => (path.value = value)} onEnter={run} />
      </Field>
      <div class="row">
        <Button disabled={!chosen || load.busy} onClick={run}>
          {load.busy ? "Loading…" : "Load"}
        </Button>
      </div>
      {load.outcome}
    </>
  );
}

function FromText({ client }: { client: Client }) {
  const text = client.keep("registry.text", "");
  const [refused, setRefused] = useState(false);
  const load = useLoading(client, "registry.load_text");
  const servers = listsServers(text.value);
  const paste = async () => {
    try {
      text.value = await navigator.clipboard.readText();
      setRefused(false);
    } catch {
      setRefused(true);
    }
  };
  return (
    <>
      <Field label="Text">
        <textarea
          rows={4}
          class="mono"
          spellcheck={false}
          value={text.value}
          placeholder={'{"tools": [ … ]}'}
          onInput={(event) => (text.value = event.currentTarget.value)}
        />
      </Field>
      <div class="row">
        <Button onClick={() => void paste()}>From clipboard</Button>
        {!servers && (
          <Button disabled={!text.value.trim() || load.busy} onClick={() => void load.run({ text: text.value })}>
            Load
          </Button>
        )}
      </div>
      {refused && (
        <StatusMark status="warn" wrap>
          The browser does not give the clipboard away; paste into the text.
        </StatusMark>
      )}
      {servers && <FromServers client={client} text={text.value} />}
      {load.outcome}
    </>
  );
}

export function LoadBox({ client }: { client: Client }) {
  const way = client.keep<Way>("registry.way", "servers");
  return (
    <Box title="Load tools">
      <div class="stack close">
        <Field label="From">
          <Select value={way.value} options={WAYS} onPick={(value) => (way.value = value)} />
        </Field>
        {way.value === "servers" && <FromServers client={client} />}
        {way.value === "running" && <FromRunning client={client} />}
        {way.value === "file" && <FromFile client={client} />}
        {way.value === "text" && <FromText client={client} />}
      </div>
    </Box>
  );
}
