import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./controls";

/** A modal over the page; Esc and Close end it, and the focus goes back to where it was. */
export function Dialog({ label, open, onClose, children, actions }: {
  label: string;
  open: boolean;
  onClose: () => void;
  children: ComponentChildren;
  actions?: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (!element) return;
    if (open && !element.open) element.showModal?.();
    if (!open && element.open) element.close();
  }, [open]);
  return (
    <dialog
      ref={dialog}
      class="sheet"
      aria-label={label}
      onClose={onClose}
      onKeyDown={(event) => event.stopPropagation()}
    >
      {open && (
        <>
          <h3>{label}</h3>
          {children}
          <div class="row acts">
            {actions}
            <span class="grow" />
            <Button onClick={onClose}>Close</Button>
          </div>
        </>
      )}
    </dialog>
  );
}
