/** Commands that steer the workbench view with the focus: each becomes an event on the view's root. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { ICommandPalette } from "@jupyterlab/apputils";
import { CATEGORY, COMMANDS, VIEW_EVENT } from "./names";

const ROOT = ".nl";

/** What the event's `detail.command` says, by command id. */
const SAYS: readonly (readonly [string, string, string])[] = [
  [COMMANDS.stop, "stop", "Stop the turn"],
  [COMMANDS.stepForward, "step-forward", "Step forward in the cache program"],
  [COMMANDS.stepBack, "step-back", "Step back in the cache program"],
  [COMMANDS.nextDecision, "next-decision", "Show the next routing decision"],
  [COMMANDS.compare, "compare", "Compare runs"],
];

export function addViewCommands(app: JupyterFrontEnd, palette: ICommandPalette | null): void {
  let last: WeakRef<Element> | null = null;
  document.addEventListener("focusin", (event) => {
    const root = event.target instanceof Element ? event.target.closest(ROOT) : null;
    last = root === null ? last : new WeakRef(root);
  });
  const view = (): Element | null => pickView(last?.deref() ?? null, app.shell.currentWidget?.node ?? null);

  for (const [id, command, label] of SAYS) {
    app.commands.addCommand(id, {
      label,
      isEnabled: () => view() !== null,
      execute: () => {
        view()?.dispatchEvent(new CustomEvent(VIEW_EVENT, { detail: { command } }));
      },
    });
    palette?.addItem({ command: id, category: CATEGORY });
  }
}

/** The view that had the focus last, where it is still shown here; else the first that is. */
export function pickView(last: Element | null, within: Element | null): Element | null {
  if (last !== null && last.isConnected && within !== null && within.contains(last)) {
    return last;
  }
  return within?.querySelector(`${ROOT}:not(.nl-trace, .nl-status)`) ?? null;
}
