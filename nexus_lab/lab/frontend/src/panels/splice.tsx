import type { Client } from "../client";
import { Empty } from "../ui";

export function SplicePanel({ client }: { client: Client }) {
  return client.parts.splice.value ? null : <Empty title="Waiting for the kernel" />;
}
