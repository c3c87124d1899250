/** The tools of the registry, searched by name, description and argument. */
import type { Signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { Client } from "../../client";
import { int, percent } from "../../format";
import type { RegistryPart, ToolRow } from "../../protocol";
import { Button, Check, Empty, matches, SearchField, StatusMark, Table } from "../../ui";

function Checks({ tool }: { tool: ToolRow }) {
  if (tool.checks.length === 0) {
    return (
      <StatusMark status="ok">
        <span class="sr">passes</span>
      </StatusMark>
    );
  }
  const worst = tool.checks.some(({ severity }) => severity === "error") ? "bad" : "warn";
  const text = tool.checks.map((check) => check.text).join("; ");
  return (
    <StatusMark status={worst} wrap title={text}>
      {text}
    </StatusMark>
  );
}

function Cost({ part }: { part: RegistryPart }) {
  const share = (tokens: number | null) => (tokens !== null && part.n_ctx ? percent(tokens / part.n_ctx, tokens > part.n_ctx ? 0 : 1) : null);
  if (part.schema_tokens === null) return <>Token counts come with the model.</>;
  const schemas = share(part.schema_tokens);
  const signatures = share(part.signature_tokens);
  return (
    <>
      All {int(part.tools.length)} schemas take {int(part.schema_tokens)} tokens{schemas && `: ${schemas} of the context`}. All
      signatures: {int(part.signature_tokens)} tokens{signatures && `, ${signatures}`}.
    </>
  );
}

export function ToolsBox({ client, part, server, chosen }: {
  client: Client;
  part: RegistryPart;
  server: string | null;
  chosen: Signal<string | null>;
}) {
  const search = client.keep("registry.search", "");
  const failing = client.keep("registry.failing", false);
  const bad = useMemo(() => part.tools.filter(({ checks }) => checks.length > 0).length, [part.tools]);
  const rows = useMemo(
    () =>
      part.tools.filter(
        (tool) =>
          (server === null || tool.server === server) &&
          (!failing.value || tool.checks.length > 0) &&
          matches(search.value, [tool.name, tool.description, ...tool.arguments]),
      ),
    [part.tools, search.value, server, failing.value],
  );
  const clear = () => {
    search.value = "";
    failing.value = false;
  };
  return (
    <section class="box tools" aria-label="Tools">
      <div class="hd">
        <h3>Tools</h3>
        <SearchField text={search} label="Search tools" placeholder="Search name, description, argument" />
        <Check small checked={failing.value} onCheck={(on) => (failing.value = on)}>
          failing checks ({int(bad)})
        </Check>
      </div>
      <div class="bd flush">
        {rows.length > 0 ? (
          <Table
            label="Tools"
            rows={rows}
            rowKey={(row) => row.name}
            selected={new Set(chosen.value === null ? [] : [chosen.value])}
            onSelect={(row) => (chosen.value = row.name)}
            height={540}
            columns={[
              { head: "Tool", class: "mono tool", cell: (row) => <span title={row.name}>{row.name}</span> },
              { head: "Server", class: "muted server", cell: (row) => <span title={row.server}>{row.server}</span> },
              { head: "Effect", cell: (row) => (row.read_only ? "reads" : "writes") },
              { head: <>Schema<br /><span class="u">tokens</span></>, right: true, cell: (row) => int(row.schema_tokens) },
              { head: <>Signature<br /><span class="u">tokens</span></>, right: true, cell: (row) => int(row.signature_tokens) },
              { head: "Check", class: "check", cell: (row) => <Checks tool={row} /> },
            ]}
          />
        ) : part.tools.length === 0 ? (
          <Empty title="No tool is loaded">Load a tool list, an OpenAPI file, or start a server.</Empty>
        ) : (
          <Empty title="No tool matches">
            Clear the search, or load another server.
            <div>
              <Button onClick={clear}>Clear the search</Button>
            </div>
          </Empty>
        )}
      </div>
      <div class="ft small muted">
        {rows.length < part.tools.length && rows.length > 0 && <>{int(rows.length)} of {int(part.tools.length)} shown. </>}
        <Cost part={part} />
      </div>
    </section>
  );
}
