import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { addViewCommands } from "./commands";
import { addLauncher } from "./launcher";
import { PLUGIN } from "./names";
import { readDefaults } from "./settings";
import { addStatusPanel } from "./status/panel";
import { addTraceViewer } from "./viewer/document";

const steering: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: "Launcher card, commands and settings of the nexus_lab workbench.",
  autoStart: true,
  optional: [ILauncher, ICommandPalette, IDefaultFileBrowser, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    launcher: ILauncher | null,
    palette: ICommandPalette | null,
    browser: IDefaultFileBrowser | null,
    registry: ISettingRegistry | null,
  ) => {
    addViewCommands(app, palette);
    const defaults = await readDefaults(registry);
    addLauncher({ app, browser, defaults }, launcher, palette);
  },
};

const status: JupyterFrontEndPlugin<void> = {
  id: "nexus-lab-extension:status",
  description: "Side panel that follows the workbench in the active notebook's kernel.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ILayoutRestorer, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    registry: ISettingRegistry | null,
  ) => {
    const defaults = await readDefaults(registry);
    addStatusPanel({ app, notebooks, palette, restorer, defaults });
  },
};

const viewer: JupyterFrontEndPlugin<void> = {
  id: "nexus-lab-extension:viewer",
  description: "Viewer of single-file traces, without a kernel.",
  autoStart: true,
  optional: [ILayoutRestorer],
  activate: (app: JupyterFrontEnd, restorer: ILayoutRestorer | null) => addTraceViewer(app, restorer),
};

export default [steering, status, viewer];
