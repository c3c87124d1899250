/**
 * Keys of a view. They are taken only while the focus is inside the view's root, and stopped there, since Lab's
 * command mode uses single keys too. Lab listens on the document before the root hears anything, but leaves
 * elements marked `data-lm-suppress-shortcuts` alone. It looks from the focused element upwards and stops at the
 * first that one of its selectors matches, so it is that element that bears the mark; and only for keys of ours, so
 * that Ctrl+S still saves the notebook.
 */
const MARK = "data-lm-suppress-shortcuts";

export function keepKeysFrom(root: HTMLElement): () => void {
  let marked: Element | null = null;
  const unmark = () => {
    marked?.removeAttribute(MARK);
    marked = null;
  };
  const decide = (event: KeyboardEvent) => {
    unmark();
    const chord = event.ctrlKey || event.metaKey || event.altKey;
    if (!(event.target instanceof Element) || !root.contains(event.target)) return;
    if (chord && event.key !== "Enter") return;
    marked = event.target;
    marked.setAttribute(MARK, "");
  };
  window.addEventListener("keydown", decide, true);
  return () => {
    window.removeEventListener("keydown", decide, true);
    unmark();
  };
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
