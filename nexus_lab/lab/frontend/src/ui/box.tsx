import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

/** An id of its own in the page, where other views stand that know nothing of this one. */
export const useOwnId = () => useState(() => `nl-${Math.random().toString(36).slice(2)}`)[0];

interface BoxProps {
  title?: ComponentChildren;
  /** Muted words after the title. */
  note?: ComponentChildren;
  /** Controls at the right end of the head. */
  tools?: ComponentChildren;
  /** No padding, for tables. */
  flush?: boolean;
  class?: string;
  children?: ComponentChildren;
  foot?: ComponentChildren;
}

export function Box({ title, note, tools, flush, class: extra, children, foot }: BoxProps) {
  const id = useOwnId();
  return (
    <section class={`box ${extra ?? ""}`} aria-labelledby={title ? id : undefined}>
      {title && (
        <div class="hd">
          <h3 id={id}>{title}</h3>
          {note && <span class="muted small">{note}</span>}
          {tools && (
            <>
              <span class="grow" />
              {tools}
            </>
          )}
        </div>
      )}
      <div class={`bd ${flush ? "flush" : ""}`}>{children}</div>
      {foot && <div class="ft small muted">{foot}</div>}
    </section>
  );
}
