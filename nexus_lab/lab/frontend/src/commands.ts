/**
 * Commands that come from outside the view, as the events that the JupyterLab extension's palette and shortcuts
 * send to the root of the view that is in use.
 */
import { problemOf, type Client } from "./client";

export const COMMAND_EVENT = "nexus-lab:command";

/** Carries commands out; returns a function that ends that. */
export function listenToCommands(root: HTMLElement, client: Client): () => void {
  const step = (method: "cache.back" | "cache.forward") => {
    client.panel.value = "cache";
    client.request(method).catch((error: unknown) => client.say(problemOf(error).message));
  };
  const commands: Record<string, () => void> = {
    stop: () => {
      client.stop();
      client.say("Stop requested.");
    },
    "step-back": () => step("cache.back"),
    "step-forward": () => step("cache.forward"),
    "next-decision": () => nextDecision(client),
    compare: () => {
      client.panel.value = "session";
    },
  };
  const onCommand = (event: Event) => {
    const detail: unknown = event instanceof CustomEvent ? event.detail : null;
    if (detail === null || typeof detail !== "object" || !("command" in detail)) return;
    commands[String(detail.command)]?.();
  };
  root.addEventListener(COMMAND_EVENT, onCommand);
  return () => root.removeEventListener(COMMAND_EVENT, onCommand);
}

/** Shows the decision before the one that is shown, and after the oldest the newest again. */
function nextDecision(client: Client): void {
  const decisions = client.told.routing.peek()?.decisions ?? [];
  const follow = client.keep("routing.follow", true);
  const chosen = client.keep<string | null>("routing.chosen", null);
  const at = follow.peek() ? 0 : decisions.findIndex(({ id }) => id === chosen.peek());
  const next = decisions[(at + 1) % Math.max(1, decisions.length)];
  client.panel.value = "routing";
  if (!next) return;
  follow.value = next === decisions[0];
  chosen.value = next.id;
}
