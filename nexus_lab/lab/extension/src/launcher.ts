/** The launcher card, and the two things it can open. Nothing here executes code. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { ICommandPalette } from "@jupyterlab/apputils";
import type { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import type { ILauncher } from "@jupyterlab/launcher";
import { CATEGORY, COMMANDS } from "./names";
import { nexusIcon, nexusIconUrl } from "./icon";
import { startingLines, type Defaults } from "./settings";

const QUICK_START = "01_quick_start.ipynb";

interface Surroundings {
  app: JupyterFrontEnd;
  browser: IDefaultFileBrowser | null;
  defaults: () => Defaults;
}

export function addLauncher(
  surroundings: Surroundings,
  launcher: ILauncher | null,
  palette: ICommandPalette | null,
): void {
  const { commands } = surroundings.app;
  const folder = (cwd: unknown): string =>
    typeof cwd === "string" ? cwd : (surroundings.browser?.model.path ?? "");

  commands.addCommand(COMMANDS.open, {
    label: (args) => (args["isPalette"] ? "Open the workbench" : "nexus_lab workbench"),
    caption: "Open a copy of the quick start, or a new notebook with the lines that open a workbench",
    icon: (args) => (args["isPalette"] ? undefined : nexusIcon),
    execute: async (args) =>
      (await openQuickStart(surroundings, folder(args["cwd"]))) ?? openNew(surroundings, folder(args["cwd"])),
  });
  commands.addCommand(COMMANDS.newNotebook, {
    label: "New workbench notebook",
    caption: "A notebook with the lines that open a workbench; run them when you like",
    execute: (args) => openNew(surroundings, folder(args["cwd"])),
  });
  commands.addCommand(COMMANDS.quickStart, {
    label: "Open a copy of the quick start",
    execute: async (args) => {
      const opened = await openQuickStart(surroundings, folder(args["cwd"]));
      if (opened === null) {
        throw new Error(`${QUICK_START} is neither in this folder nor in notebooks/. Start JupyterLab where it is.`);
      }
      return opened;
    },
  });
  for (const command of [COMMANDS.open, COMMANDS.newNotebook, COMMANDS.quickStart]) {
    palette?.addItem({ command, category: CATEGORY, args: { isPalette: true } });
  }
  launcher?.add({ command: COMMANDS.open, category: "Notebook", rank: 5, kernelIconUrl: nexusIconUrl });
}

/** Opens a copy of the quick start beside it, so that the original stays as it shipped; null where there is none. */
async function openQuickStart({ app }: Surroundings, cwd: string): Promise<unknown> {
  const { contents } = app.serviceManager;
  for (const folder of [cwd, joined(cwd, "notebooks"), "", "notebooks"]) {
    const found = await contents.get(joined(folder, QUICK_START), { content: false }).catch(() => null);
    if (found !== null) {
      const copy = await contents.copy(found.path, folder);
      return app.commands.execute("docmanager:open", { path: copy.path, factory: "Notebook" });
    }
  }
  return null;
}

async function openNew({ app, defaults }: Surroundings, cwd: string): Promise<unknown> {
  const { contents, kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const name = kernelspecs.specs?.default ?? "python3";
  const spec = kernelspecs.specs?.kernelspecs[name];
  const { path } = await contents.newUntitled({ path: cwd, type: "notebook" });
  await contents.save(path, {
    type: "notebook",
    format: "json",
    content: notebook(startingLines(defaults()), name, spec?.display_name ?? name, spec?.language ?? "python"),
  });
  return app.commands.execute("docmanager:open", { path, factory: "Notebook", kernel: { name } });
}

function notebook(source: string, name: string, displayName: string, language: string): object {
  return {
    cells: [{ cell_type: "code", id: "open", execution_count: null, metadata: {}, outputs: [], source }],
    metadata: { kernelspec: { name, display_name: displayName, language } },
    nbformat: 4,
    nbformat_minor: 5,
  };
}

function joined(folder: string, name: string): string {
  return folder === "" ? name : `${folder}/${name}`;
}
