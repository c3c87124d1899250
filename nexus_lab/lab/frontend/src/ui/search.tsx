import type { Signal } from "@preact/signals";

export function SearchField({ text, label, placeholder, class: extra }: {
  text: Signal<string>;
  label: string;
  placeholder: string;
  class?: string;
}) {
  return (
    <input
      type="search"
      class={extra}
      aria-label={label}
      placeholder={placeholder}
      value={text.value}
      spellcheck={false}
      onInput={(event) => (text.value = event.currentTarget.value)}
    />
  );
}

/** Whether every word of the search stands somewhere in the texts. */
export function matches(search: string, texts: readonly (string | null)[]): boolean {
  const all = texts.join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}
