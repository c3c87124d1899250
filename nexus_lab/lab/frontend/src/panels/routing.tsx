import type { Client } from "../client";
import { Empty } from "../ui";

export function RoutingPanel({ client }: { client: Client }) {
  return client.parts.routing.value ? null : <Empty title="Waiting for the kernel" />;
}
