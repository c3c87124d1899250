import type { Client } from "../client";
import { Empty } from "../ui";

export function AgentPanel({ client }: { client: Client }) {
  return client.parts.agent.value ? null : <Empty title="Waiting for the kernel" />;
}
