import type { ComponentChildren, JSX, Ref } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

type ButtonProps = Omit<JSX.ButtonHTMLAttributes<HTMLButtonElement>, "class" | "disabled" | "onClick"> & {
  primary?: boolean;
  quiet?: boolean;
  class?: string;
  /** Stays in the tab order, so that a redraw that disables it does not lose the focus. */
  disabled?: boolean;
  pressed?: boolean;
  onClick?: (event: MouseEvent) => void;
  buttonRef?: Ref<HTMLButtonElement>;
  children?: ComponentChildren;
};

export function Button({ primary, quiet, class: extra, disabled, pressed, onClick, buttonRef, children, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      ref={buttonRef}
      class={`btn ${primary ? "primary" : ""} ${quiet ? "quiet" : ""} ${extra ?? ""}`}
      aria-disabled={disabled ? "true" : undefined}
      aria-pressed={pressed === undefined ? undefined : pressed}
      onClick={(event) => {
        if (disabled) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {children}
    </button>
  );
}

/** A label above its control. */
export function Field({ label, class: extra, children }: {
  label: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}) {
  return (
    <label class={`f ${extra ?? ""}`}>
      <span>{label}</span>
      {children}
    </label>
  );
}

export function Check({ checked, onCheck, disabled, small, children, ...rest }: {
  checked: boolean;
  onCheck: (checked: boolean) => void;
  disabled?: boolean;
  small?: boolean;
  "aria-label"?: string;
  children?: ComponentChildren;
}) {
  return (
    <label class={`c ${small ? "small" : ""}`}>
      <input
        type="checkbox"
        checked={checked}
        disabled={disabled}
        aria-label={rest["aria-label"]}
        onChange={(event) => onCheck(event.currentTarget.checked)}
      />
      {children}
    </label>
  );
}

export interface Option<T extends string> {
  value: T;
  label: string;
}

export function Select<T extends string>({ value, options, onPick, disabled, ...rest }: {
  value: T;
  options: readonly (Option<T> | T)[];
  onPick: (value: T) => void;
  disabled?: boolean;
  class?: string;
  "aria-label"?: string;
}) {
  return (
    <select
      {...rest}
      value={value}
      disabled={disabled}
      onChange={(event) => onPick(event.currentTarget.value as T)}
    >
      {options.map((option) => {
        const { value: own, label } = typeof option === "string" ? { value: option, label: option } : option;
        return (
          <option key={own} value={own}>
            {label}
          </option>
        );
      })}
    </select>
  );
}

/** Takes what was typed at Enter or when it is left; anything that is no number in range goes back. */
export function NumberField({ value, onValue, min, max, step, digits = 0, disabled, width, empty, placeholder, ...rest }: {
  value: number | null;
  onValue: (value: number) => void;
  min?: number;
  max?: number;
  step?: number;
  digits?: number;
  disabled?: boolean;
  width?: number | string;
  /** Called when the field was emptied; without it an empty field goes back. */
  empty?: () => void;
  placeholder?: string;
  "aria-label"?: string;
}) {
  const shown = value === null ? "" : value.toFixed(digits);
  const [draft, setDraft] = useState<string | null>(null);
  useEffect(() => setDraft(null), [shown]);
  const commit = () => {
    if (draft === null) return;
    setDraft(null);
    if (draft.trim() === "") return empty?.();
    const typed = Number(draft);
    if (!Number.isFinite(typed)) return;
    const limited = Math.min(max ?? Infinity, Math.max(min ?? -Infinity, typed));
    if (limited !== value) onValue(limited);
  };
  return (
    <input
      type="number"
      aria-label={rest["aria-label"]}
      value={draft ?? shown}
      placeholder={placeholder}
      min={min}
      max={max}
      step={step ?? "any"}
      disabled={disabled}
      style={width === undefined ? undefined : { width }}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={commit}
      onBlur={commit}
      onKeyDown={(event) => {
        if (event.key === "Enter") commit();
      }}
    />
  );
}

/** One choice of a few, drawn as joined buttons; the arrow keys move it. */
export function Segmented<T extends string>({ label, value, options, onPick, disabled }: {
  label: string;
  value: T;
  options: readonly Option<T>[];
  onPick: (value: T) => void;
  disabled?: boolean;
}) {
  const group = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const delta = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!delta || disabled) return;
    event.preventDefault();
    event.stopPropagation();
    const at = options.findIndex((option) => option.value === value);
    const next = (at + delta + options.length) % options.length;
    const target = options[next];
    if (!target) return;
    onPick(target.value);
    group.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="seg" role="radiogroup" aria-label={label} ref={group} onKeyDown={move}>
      {options.map((option) => (
        <button
          key={option.value}
          type="button"
          class="btn"
          role="radio"
          aria-checked={option.value === value}
          tabIndex={option.value === value ? 0 : -1}
          disabled={disabled}
          onClick={() => onPick(option.value)}
        >
          {option.label}
        </button>
      ))}
    </div>
  );
}

export function TextField({ value, onValue, onEnter, placeholder, type = "text", inputRef, style, ...rest }: {
  value: string;
  onValue: (value: string) => void;
  onEnter?: () => void;
  placeholder?: string;
  type?: "text" | "search";
  inputRef?: Ref<HTMLInputElement>;
  style?: JSX.CSSProperties;
  "aria-label"?: string;
}) {
  return (
    <input
      type={type}
      ref={inputRef}
      style={style}
      aria-label={rest["aria-label"]}
      value={value}
      placeholder={placeholder}
      spellcheck={false}
      autocomplete="off"
      onInput={(event) => onValue(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") onEnter?.();
      }}
    />
  );
}
