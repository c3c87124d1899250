import type { Client } from "../client";
import { Empty } from "../ui";

export function RegistryPanel({ client }: { client: Client }) {
  return client.parts.registry.value ? null : <Empty title="Waiting for the kernel" />;
}
