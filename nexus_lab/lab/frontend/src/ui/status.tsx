import type { ComponentChildren } from "preact";
import type { Decline, ErrorInfo, Status } from "../protocol";

const SIGNS: Record<Status, string> = { ok: "✓", warn: "!", bad: "×", none: "" };

/** Sign and word, never hue alone. */
export function StatusMark({ status, wrap, title, children }: {
  status: Status;
  wrap?: boolean;
  title?: string;
  children?: ComponentChildren;
}) {
  return (
    <span class={`st ${status} ${wrap ? "wrap" : ""}`} title={title}>
      {SIGNS[status] && <i aria-hidden="true">{SIGNS[status]}</i>}
      {children && <span>{children}</span>}
    </span>
  );
}

/** A short report with a coloured edge. */
export function Note({ status = "none", title, class: extra, children }: {
  status?: Status;
  title: ComponentChildren;
  class?: string;
  children?: ComponentChildren;
}) {
  return (
    <div class={`note ${status} ${extra ?? ""}`}>
      <div class="t">{title}</div>
      {children}
    </div>
  );
}

/** A typed error with what to do next. */
export function Problem({ fault, status = "bad", children }: {
  fault: ErrorInfo | null;
  /** "warn" for what was wanted, as a refusal is. */
  status?: Status;
  children?: ComponentChildren;
}) {
  if (!fault) return null;
  return (
    <div class={`note ${status} small`} role="alert">
      <div>
        <StatusMark status={status} wrap>
          {fault.message}
        </StatusMark>
      </div>
      {fault.next_step && <p class="next">{fault.next_step}</p>}
      <div class="tiny muted mono">{fault.type}</div>
      {children && <div class="row acts">{children}</div>}
    </div>
  );
}

/** Not an error: what was declined, why, and what happened instead. */
export function DeclineNote({ what, decline, cost, children }: {
  what: string;
  decline: Decline;
  cost?: string;
  children?: ComponentChildren;
}) {
  return (
    <Note status="warn" title={`${what} declined: ${decline.reason}`}>
      <p class="next">
        {decline.instead}
        {cost && <span class="num"> {cost}</span>}
      </p>
      {children && <div class="row acts">{children}</div>}
    </Note>
  );
}

export function Empty({ title, tight, children }: {
  title: ComponentChildren;
  tight?: boolean;
  children?: ComponentChildren;
}) {
  return (
    <div class={`empty ${tight ? "tight" : ""}`}>
      <b>{title}</b>
      {children}
    </div>
  );
}
