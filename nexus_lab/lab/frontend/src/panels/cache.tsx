import type { Client } from "../client";
import { Empty } from "../ui";

export function CachePanel({ client }: { client: Client }) {
  return client.parts.cache.value ? null : <Empty title="Waiting for the kernel" />;
}
