/** The workbench on a page of its own, told the story of the fixtures: `?panel=routing&theme=dark&state=prefill`. */
import { render } from "preact";
import { Workbench } from "../src/app";
import { connect, openView, type Channel, type Client, type Theme } from "../src/client";
import type { PanelName, Parts, ToView } from "../src/protocol";
import { AGENT, ANSWERS, BAR, PARTS, PREFILL, REGISTRY, WAITING_TURN, manyTools } from "../tests/fixtures";
import { cachePart, fakeKernel as storyKernel, splicePart } from "../tests/fixtures_cache";

const query = new URLSearchParams(location.search);
const theme: Theme = query.get("theme") === "dark" ? "dark" : "light";
document.documentElement.dataset.theme = theme;

const STATES: Record<string, Partial<Parts>> = {
  prefill: {
    bar: { ...BAR, ...PREFILL },
    agent: { ...AGENT, approval: null, queue: ["And tell Mara about it."], turns: [...AGENT.turns.slice(0, 3), { ...WAITING_TURN, state: "running" }] },
  },
  many: { registry: { ...REGISTRY, tools: manyTools(5000) } },
  empty: {
    bar: { ...BAR, engine: "unloaded", model: null, quantisation: null, holder: null, context_total: 0 },
    registry: { ...REGISTRY, servers: [], tools: [], schema_tokens: null, signature_tokens: null },
    agent: { ...AGENT, turns: [], approval: null, ready: false, missing: "Load a model in Models and tools in Registry." },
    routing: { ...PARTS.routing!, decisions: [], margins: [] },
    session: { ...PARTS.session!, runs: [], journal: null },
    models: { ...PARTS.models!, rows: [], speed: null },
  },
};

function storyChannel(): Channel {
  const parts = { ...PARTS, cache: cachePart(), splice: splicePart(), ...STATES[query.get("state") ?? ""] };
  const inner = storyKernel(parts).channel;
  let hear: (message: ToView, buffers: readonly DataView[]) => void = () => undefined;
  return {
    send: (message) => {
      const answer = message.kind === "request" ? ANSWERS[message.method] : undefined;
      if (message.kind !== "request" || !answer) return inner.send(message);
      queueMicrotask(() => hear({ kind: "reply", id: message.id, ok: true, result: answer(message.params) }, []));
    },
    on: (callback) => {
      hear = callback;
      return inner.on(callback);
    },
  };
}

const client: Client = openView(connect(storyChannel()));
client.theme.value = theme;
client.panel.value = (query.get("panel") ?? "registry") as PanelName;
if (query.get("panel") === "registry") client.keep<string | null>("registry.tool", null).value = "issue_write";
if (query.get("panel") === "routing") client.keep("routing.request", "").value = "Close 482 as a duplicate of 467.";
if (query.get("panel") === "session" && query.get("state") !== "empty") {
  client.keep("session.choice", { a: null, b: null } as { a: string | null; b: string | null }).value = { a: "r-012", b: "r-013" };
  client.keep<readonly number[]>("session.turns", []).value = [4];
}
render(<Workbench client={client} only={query.get("only") as PanelName | null} />, document.getElementById("view")!);
