import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

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
  const id = useId();
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
