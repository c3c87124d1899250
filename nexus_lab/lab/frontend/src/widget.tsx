/** The entry that anywidget loads: one connection a widget, one view a place where it is shown. */
import { signal } from "@preact/signals";
import { render as draw } from "preact";
import { Workbench } from "./app";
import { connect, openView, type Channel, type Client, type Theme } from "./client";
import type { PanelName, ToKernel, ToView } from "./protocol";
import { followTheme } from "./theme";

/** What of anywidget's model is used here. */
export interface WidgetModel {
  get(name: "panel" | "theme"): unknown;
  on(event: string, callback: (...parts: never[]) => void): void;
  off(event: string, callback: (...parts: never[]) => void): void;
  send(content: unknown): void;
}

/** Once a view is there, its comm is live; from then on an update says that it is not, as after a restart. */
const GONE = ["comm:close", "comm_live_update", "destroy"];

export function channelOf(model: WidgetModel): Channel {
  return {
    send: (message: ToKernel) => model.send(message),
    on: (callback) => {
      const hear = (message: ToView, buffers: readonly DataView[]) => callback(message, buffers ?? []);
      model.on("msg:custom", hear);
      return () => model.off("msg:custom", hear);
    },
    onClosed: (callback) => {
      for (const event of GONE) model.on(event, callback);
      return () => {
        for (const event of GONE) model.off(event, callback);
      };
    },
  };
}

interface Held {
  client: Client;
  views: number;
}
const held = new WeakMap<WidgetModel, Held>();

/** Views of one widget share its connection; the last one closes it. */
function hold(model: WidgetModel): { client: Client; release(): void } {
  const entry = held.get(model) ?? { client: connect(channelOf(model)), views: 0 };
  held.set(model, entry);
  entry.views += 1;
  return {
    client: openView(entry.client),
    release: () => {
      entry.views -= 1;
      if (entry.views > 0) return;
      entry.client.close();
      held.delete(model);
    },
  };
}

function themeOf(value: unknown): Theme | null {
  return value === "light" || value === "dark" ? value : null;
}

export function render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
  const { client, release } = hold(model);
  const panel = signal(model.get("panel") as PanelName | null);
  const theme = followTheme(client, () => themeOf(model.get("theme")));
  const onPanel = () => {
    panel.value = model.get("panel") as PanelName | null;
  };
  model.on("change:panel", onPanel);
  model.on("change:theme", theme.update);
  const View = () => <Workbench client={client} only={panel.value} />;
  draw(<View />, el);
  return () => {
    model.off("change:panel", onPanel);
    model.off("change:theme", theme.update);
    theme.end();
    draw(null, el);
    release();
  };
}

export default { render };
