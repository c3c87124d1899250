import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import type { ICommandPalette } from "@jupyterlab/apputils";
import type { INotebookTracker } from "@jupyterlab/notebook";
import { ReactWidget } from "@jupyterlab/ui-components";
import * as React from "react";
import { nexusIcon } from "../icon";
import { CATEGORY, COMMANDS } from "../names";
import type { Defaults } from "../settings";
import { follow } from "./follow";
import type { Situation } from "./protocol";
import { StatusView } from "./view";

const ID = "nexus-lab-status";

interface Surroundings {
  app: JupyterFrontEnd;
  notebooks: INotebookTracker;
  palette: ICommandPalette | null;
  restorer: ILayoutRestorer | null;
  defaults: () => Defaults;
}

export function addStatusPanel({ app, notebooks, palette, restorer, defaults }: Surroundings): void {
  let situation: Situation = { kind: "no-notebook" };
  const listeners = new Set<() => void>();
  const follower = follow(
    notebooks,
    () => defaults().frameRate,
    (now) => {
      situation = now;
      listeners.forEach((tell) => tell());
    },
  );

  function subscribe(tell: () => void): () => void {
    listeners.add(tell);
    return () => listeners.delete(tell);
  }
  function Panel(): React.JSX.Element {
    return <StatusView situation={React.useSyncExternalStore(subscribe, () => situation)} ask={follower.ask} />;
  }

  const panel = ReactWidget.create(<Panel />);
  panel.id = ID;
  panel.title.icon = nexusIcon;
  panel.title.caption = "nexus_lab: what the workbench in this notebook's kernel is doing";
  panel.addClass("nl-status-panel");
  panel.disposed.connect(() => follower.dispose());
  app.shell.add(panel, "right", { rank: 900 });
  restorer?.add(panel, ID);
  app.commands.addCommand(COMMANDS.showStatus, {
    label: "Show the status panel",
    execute: () => app.shell.activateById(ID),
  });
  palette?.addItem({ command: COMMANDS.showStatus, category: CATEGORY });
}
