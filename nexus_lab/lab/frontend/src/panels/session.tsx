import type { Client } from "../client";
import { Empty } from "../ui";

export function SessionPanel({ client }: { client: Client }) {
  return client.parts.session.value ? null : <Empty title="Waiting for the kernel" />;
}
