/** The shell: bar, tabs, one panel, footer with the live region, key sheet. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { Bar, Notice } from "./bar";
import { problemOf, type Client } from "./client";
import { listenToCommands } from "./commands";
import { int } from "./format";
import { isTyping, keepKeysFrom, KEY_LIST } from "./keys";
import { AgentPanel } from "./panels/agent";
import { CachePanel } from "./panels/cache";
import { ModelsPanel } from "./panels/models";
import { RegistryPanel } from "./panels/registry";
import { RoutingPanel } from "./panels/routing";
import { SessionPanel } from "./panels/session";
import { SplicePanel } from "./panels/splice";
import type { PanelName } from "./protocol";
import { Dialog, Empty, Problem, useOwnId } from "./ui";
import { hideNothing } from "./ui/visible";

hideNothing();

type Panel = (props: { client: Client }) => JSX.Element | null;

const PANELS: readonly { name: PanelName; title: string; Panel: Panel }[] = [
  { name: "models", title: "Models", Panel: ModelsPanel },
  { name: "registry", title: "Registry", Panel: RegistryPanel },
  { name: "routing", title: "Routing", Panel: RoutingPanel },
  { name: "cache", title: "Cache", Panel: CachePanel },
  { name: "splice", title: "Splice", Panel: SplicePanel },
  { name: "agent", title: "Agent", Panel: AgentPanel },
  { name: "session", title: "Session", Panel: SessionPanel },
];

function neighbour(current: PanelName, delta: number): PanelName {
  const at = PANELS.findIndex(({ name }) => name === current);
  return PANELS[(at + delta + PANELS.length) % PANELS.length]?.name ?? current;
}

/** How many tools there are, once that is known. */
function TabCount({ client, name }: { client: Client; name: PanelName }) {
  const tools = name === "registry" ? client.told.registry.value?.tools.length : undefined;
  return tools ? <span class="n">{int(tools)}</span> : null;
}

function Tabs({ client, prefix }: { client: Client; prefix: string }) {
  const list = useRef<HTMLDivElement>(null);
  const shown = client.panel.value;
  const onKeyDown = (event: KeyboardEvent) => {
    const targets: Record<string, PanelName> = {
      ArrowRight: neighbour(shown, 1),
      ArrowLeft: neighbour(shown, -1),
      Home: PANELS[0]!.name,
      End: PANELS[PANELS.length - 1]!.name,
    };
    const next = targets[event.key];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    client.panel.value = next;
    list.current?.querySelector<HTMLElement>(`[data-panel="${next}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label="Workbench panels" ref={list} onKeyDown={onKeyDown}>
      {PANELS.map(({ name, title }) => (
        <button
          key={name}
          type="button"
          class="tab"
          role="tab"
          id={`${prefix}-tab-${name}`}
          data-panel={name}
          aria-controls={`${prefix}-panel`}
          aria-selected={name === shown}
          tabIndex={name === shown ? 0 : -1}
          onClick={() => (client.panel.value = name)}
        >
          {title}
          <TabCount client={client} name={name} />
        </button>
      ))}
    </div>
  );
}

function KeySheet({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog label="Keys" open={open} onClose={onClose}>
      <dl class="kv">
        {KEY_LIST.map(([keys, what]) => [
          <dt key={keys}>
            <kbd>{keys}</kbd>
          </dt>,
          <dd key={what}>{what}</dd>,
        ])}
      </dl>
    </Dialog>
  );
}

function Footer({ client, openKeys }: { client: Client; openKeys: () => void }) {
  return (
    <footer class="foot">
      <span role="status" aria-live="polite" class="live">
        {client.live.value || "Ready."}
      </span>
      <span class="grow" />
      <span class="keys">
        <kbd>[</kbd> <kbd>]</kbd> panel &nbsp; <kbd>←</kbd> <kbd>→</kbd> step &nbsp;{" "}
        <button type="button" class="link" onClick={openKeys}>
          <kbd>?</kbd> all keys
        </button>
      </span>
    </footer>
  );
}

/** Before the kernel was heard; in a notebook that is only read, none ever is. */
function Waiting() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 5000);
    return () => clearTimeout(timer);
  }, []);
  return late ? (
    <Empty title="No kernel answers">Run the cell again to bring this view to life.</Empty>
  ) : (
    <Empty title="Waiting for the kernel" />
  );
}

/** What cannot be drawn says so, and leaves what is around it as it is. */
function Guard({ children }: { children: ComponentChildren }) {
  const [error] = useErrorBoundary();
  return <>{error ? <Problem fault={problemOf(error)} /> : children}</>;
}

/** All panels behind tabs, or one of them alone where `only` is given. */
export function Workbench({ client, only }: { client: Client; only?: PanelName | null }) {
  const root = useRef<HTMLDivElement>(null);
  const prefix = useOwnId();
  const [keys, setKeys] = useState(false);
  const shown = only ?? client.panel.value;
  const entry = PANELS.find(({ name }) => name === shown) ?? PANELS[0]!;

  // Who has no model yet begins with the models; decided once, when the kernel is first heard.
  const heard = client.told.bar.value !== null;
  useEffect(() => {
    const begins = client.panel.peek() === "registry" && client.told.bar.peek()?.engine === "unloaded";
    if (begins) client.panel.value = "models";
  }, [heard]);

  useEffect(() => (root.current ? keepKeysFrom(root.current) : undefined), []);
  useEffect(() => (root.current ? listenToCommands(root.current, client) : undefined), [client]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const take = () => {
      event.preventDefault();
      event.stopPropagation();
    };
    if (event.key === "Escape" && client.stoppable.peek()) {
      take();
      client.stop();
      client.say("Stop requested.");
    } else if (isTyping(event.target)) {
      event.stopPropagation();
    } else if (event.key === "?") {
      take();
      setKeys(true);
    } else if (!only && (event.key === "[" || event.key === "]")) {
      take();
      client.panel.value = neighbour(shown, event.key === "]" ? 1 : -1);
      const inTabs = root.current?.querySelector(".tabs")?.contains(document.activeElement);
      const target = inTabs ? `[data-panel="${client.panel.value}"]` : ".panel";
      root.current?.querySelector<HTMLElement>(target)?.focus({ preventScroll: true });
    }
  };

  return (
    <div
      class="nl nl-workbench"
      ref={root}
      data-theme={client.theme.value}
      data-own={client.ownColours.value || undefined}
      onKeyDown={onKeyDown}
    >
      <Guard>
        <Bar client={client} />
      </Guard>
      {only ? null : <Tabs client={client} prefix={prefix} />}
      <Notice client={client} />
      <div
        key={entry.name}
        class={`panel panel-${entry.name}`}
        role={only ? "region" : "tabpanel"}
        id={`${prefix}-panel`}
        aria-labelledby={only ? undefined : `${prefix}-tab-${entry.name}`}
        aria-label={only ? entry.title : undefined}
        tabIndex={-1}
      >
        <Guard>{client.told[entry.name].value === null ? <Waiting /> : <entry.Panel client={client} />}</Guard>
      </div>
      <Footer client={client} openKeys={() => setKeys(true)} />
      <KeySheet open={keys} onClose={() => setKeys(false)} />
    </div>
  );
}
