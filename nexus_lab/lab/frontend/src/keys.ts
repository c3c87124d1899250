/**
 * Keys of a view. They are taken only while the focus is inside the view's root, and stopped there, since Lab's
 * command mode uses single keys too. Lab listens on the document before the root hears anything, but leaves
 * elements marked `data-lm-suppress-shortcuts` alone; the mark is set for keys of ours and for no other, so that
 * Ctrl+S still saves the notebook.
 */
const MARK = "data-lm-suppress-shortcuts";

export function keepKeysFrom(root: HTMLElement): () => void {
  const decide = (event: KeyboardEvent) => {
    const inside = event.target instanceof Node && root.contains(event.target);
    const chord = event.ctrlKey || event.metaKey || event.altKey;
    root.toggleAttribute(MARK, inside && (!chord || event.key === "Enter"));
  };
  window.addEventListener("keydown", decide, true);
  return () => window.removeEventListener("keydown", decide, true);
}

/** Whether the key belongs to what is typed into. */
export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !/^(checkbox|radio|range|button)$/.test(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

export const KEY_LIST: readonly (readonly [string, string])[] = [
  ["[ ]", "previous, next panel"],
  ["Esc", "stop the turn, also during prefill"],
  ["← →", "tabs: panel; Cache: step; heatmap: layer; τ: 0.0002"],
  ["↑ ↓", "tables: row; heatmap: KV head"],
  ["PgUp PgDn", "τ: 0.002; token strip: 200 tokens"],
  ["Home End", "first, last op, row or layer"],
  ["Ctrl ↵", "send the message, route the request"],
  ["?", "this list"],
];
