/** Text that hides nothing. */
import { options, type VNode } from "preact";

/** Controls (but tab and line feed) and marks that turn the direction of what follows. */
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

const escaped = (mark: string) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;

const shown = (value: unknown) => (typeof value === "string" ? value.replace(HIDDEN, escaped) : value);

/**
 * From now on, whatever is drawn shows hidden characters by their number: a tool cannot look like another one, nor an
 * argument like what it is not. Values of fields stay as they are.
 */
export function hideNothing(): void {
  const before = options.vnode;
  options.vnode = (vnode: VNode) => {
    // What is text in the document is a node of its own, without a type.
    if (vnode.type === null) vnode.props = shown(vnode.props) as VNode["props"];
    else if (typeof vnode.type === "string") {
      const props = vnode.props as Record<string, unknown>;
      for (const name of ["title", "aria-label"]) if (props[name]) props[name] = shown(props[name]);
    }
    before?.(vnode);
  };
}

/** A token's text with what cannot be seen spelled out; outer spaces go where they are not all there is. */
export function visibleText(text: string): string {
  const spelled = text.replace(/[\n\r\t]/g, (mark) => JSON.stringify(mark).slice(1, -1));
  return spelled.trim() || "␣".repeat(Math.max(1, Math.min(3, spelled.length)));
}
