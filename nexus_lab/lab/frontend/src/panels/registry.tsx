/** Which tools exist, what each costs in tokens, and what its schema says. */
import type { Client } from "../client";
import { DetailBox } from "./registry/detail";
import { LoadBox } from "./registry/load";
import { ServersColumn } from "./registry/servers";
import { ToolsBox } from "./registry/tools";

export function RegistryPanel({ client }: { client: Client }) {
  const part = client.told.registry.value;
  const server = client.keep<string | null>("registry.server", null);
  const chosen = client.keep<string | null>("registry.tool", null);
  if (!part) return null;
  const known = part.servers.some(({ name }) => name === server.value) ? server.value : null;
  return (
    <div class="cols reg">
      <div class="stack">
        <ServersColumn client={client} part={part} chosen={server} />
        <LoadBox client={client} />
      </div>
      <ToolsBox client={client} part={part} server={known} chosen={chosen} />
      <div class="stack">
        <DetailBox client={client} tool={part.tools.find(({ name }) => name === chosen.value) ?? null} />
      </div>
    </div>
  );
}
