import type { Client } from "../client";
import { Empty } from "../ui";

export function ModelsPanel({ client }: { client: Client }) {
  return client.parts.models.value ? null : <Empty title="Waiting for the kernel" />;
}
