/** Every id that more than one module, or a user's shortcut file, refers to. */

export const PLUGIN = "nexus-lab-extension:plugin";
export const COMM_TARGET = "nexus_lab.status";
export const VIEW_EVENT = "nexus-lab:command";

export const COMMANDS = {
  open: "nexus-lab:open",
  newNotebook: "nexus-lab:new-notebook",
  quickStart: "nexus-lab:quick-start",
  showStatus: "nexus-lab:show-status",
  stop: "nexus-lab:stop",
  stepForward: "nexus-lab:step-forward",
  stepBack: "nexus-lab:step-back",
  nextDecision: "nexus-lab:next-decision",
  compare: "nexus-lab:compare",
} as const;

export const CATEGORY = "nexus_lab";
