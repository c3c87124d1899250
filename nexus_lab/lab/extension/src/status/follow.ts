/**
 * Follows the active notebook's kernel over a comm, never by executing code.
 *
 * A kernel that does not know the target closes the comm at once, and logs a line. So it is asked only when the
 * notebook names nexus_lab, and then at the moments when a workbench may have appeared: the kernel is new, a
 * widget was displayed, a cell has run, or the user asks for it.
 */
import { NotebookActions, type INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import type { Kernel, KernelMessage } from "@jupyterlab/services";
import { COMM_TARGET } from "../names";
import { isParts, type Situation, type Status, type ToKernel } from "./protocol";

const NOTHING: Status = { bar: null, decision: null };
const WIDGET = "application/vnd.jupyter.widget-view+json";

export interface Follower {
  /** Asks the kernel now, whatever the notebook says. */
  ask(): void;
  dispose(): void;
}

export function follow(
  notebooks: INotebookTracker,
  frameRate: () => number,
  report: (situation: Situation) => void,
): Follower {
  let panel: NotebookPanel | null = null;
  let comm: Kernel.IComm | null = null;
  let kernel: Kernel.IKernelConnection | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let status: Status = NOTHING;

  const name = (): string => panel?.title.label ?? "";

  function hangUp(): void {
    clearTimeout(timer);
    const old = comm;
    comm = null;
    if (old !== null && !old.isDisposed) {
      old.onClose = () => undefined;
      old.close();
    }
  }

  function ask(): void {
    if (panel === null || kernel === null || comm !== null || !kernel.handleComms) {
      return;
    }
    const opened = kernel.createComm(COMM_TARGET);
    comm = opened;
    status = NOTHING;
    report({ kind: "connecting", notebook: name() });
    opened.onMsg = (message) => take(opened, message.content.data);
    opened.onClose = () => {
      if (comm === opened) {
        comm = null;
        report({ kind: "not-loaded", notebook: name() });
      }
    };
    opened.open();
    tell(opened, { kind: "hello" });
  }

  function take(from: Kernel.IComm, data: unknown): void {
    if (from !== comm || !isParts(data)) {
      return;
    }
    status = { ...status, ...data.parts };
    report({ kind: "following", notebook: name(), status });
    timer = setTimeout(() => {
      if (from === comm && !from.isDisposed) {
        tell(from, { kind: "ack", revision: data.revision });
      }
    }, 1000 / frameRate());
  }

  function askIfNamed(): void {
    if (panel !== null && namesNexusLab(panel)) {
      ask();
    }
  }

  function onMessage(_sender: unknown, message: KernelMessage.IIOPubMessage): void {
    const type = message.header.msg_type;
    if (comm === null && (type === "display_data" || type === "execute_result")) {
      const { data } = message.content as { data: Record<string, unknown> };
      if (WIDGET in data) {
        askIfNamed();
      }
    }
  }

  function onStatus(_sender: unknown, now: Kernel.Status): void {
    if (now === "restarting" || now === "autorestarting" || now === "dead") {
      comm = null;
      report({ kind: "not-loaded", notebook: name() });
    }
  }

  function watchKernel(): void {
    const next = panel?.sessionContext.session?.kernel ?? null;
    if (next === kernel) {
      return;
    }
    hangUp();
    kernel?.iopubMessage.disconnect(onMessage);
    kernel?.statusChanged.disconnect(onStatus);
    kernel = next;
    kernel?.iopubMessage.connect(onMessage);
    kernel?.statusChanged.connect(onStatus);
    report(kernel === null ? { kind: "no-kernel", notebook: name() } : { kind: "not-loaded", notebook: name() });
    askIfNamed();
  }

  function watchNotebook(): void {
    panel?.sessionContext.kernelChanged.disconnect(watchKernel);
    panel = notebooks.currentWidget;
    panel?.sessionContext.kernelChanged.connect(watchKernel);
    watchKernel();
    if (panel === null) {
      report({ kind: "no-notebook" });
    } else if (comm === null) {
      void panel.context.ready.then(askIfNamed);
    }
  }

  function onExecuted(_sender: unknown, { notebook }: { notebook: unknown }): void {
    if (notebook === panel?.content) {
      askIfNamed();
    }
  }

  notebooks.currentChanged.connect(watchNotebook);
  NotebookActions.executed.connect(onExecuted);
  watchNotebook();

  return {
    ask,
    dispose: () => {
      notebooks.currentChanged.disconnect(watchNotebook);
      NotebookActions.executed.disconnect(onExecuted);
      panel?.sessionContext.kernelChanged.disconnect(watchKernel);
      kernel?.iopubMessage.disconnect(onMessage);
      kernel?.statusChanged.disconnect(onStatus);
      hangUp();
    },
  };
}

function tell(comm: Kernel.IComm, message: ToKernel): void {
  comm.send({ ...message });
}

function namesNexusLab(panel: NotebookPanel): boolean {
  const cells = panel.content.model?.cells;
  if (cells === undefined) {
    return false;
  }
  for (const cell of cells) {
    if (cell.type === "code" && cell.sharedModel.source.includes("nexus_lab")) {
      return true;
    }
  }
  return false;
}
