/** Numbers as the workbench writes them: "−" as minus, thousands with commas, a unit on each, "–" for none. */

export const NONE = "–";
const NBSP = "\u00a0";
type Maybe = number | null | undefined;

function absent(value: Maybe): value is null | undefined {
  return value === null || value === undefined || Number.isNaN(value);
}

export function minus(text: string): string {
  return text.replace(/-/g, "−");
}

/** 1,117 */
export function int(value: Maybe): string {
  return absent(value) ? NONE : minus(Math.round(value).toLocaleString("en-US"));
}

/** 0.0086 */
export function fixed(value: Maybe, digits: number): string {
  if (absent(value)) return NONE;
  const text = value.toFixed(digits);
  return minus(/^-0\.?0*$/.test(text) ? text.slice(1) : text);
}

/** A share as "34.7 %". */
export function percent(share: Maybe, digits = 1): string {
  return absent(share) ? NONE : `${fixed(100 * share, digits)}${NBSP}%`;
}

/** "3.4 ms", "284 ms", "2.51 s". */
export function ms(value: Maybe): string {
  if (absent(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999.5) return `${fixed(value / 1000, 2)}${NBSP}s`;
  if (size >= 99.95) return `${fixed(value, 0)}${NBSP}ms`;
  if (size !== 0 && size < 0.095) return `${fixed(value, 3)}${NBSP}ms`;
  return `${fixed(value, 1)}${NBSP}ms`;
}

/** A number of milliseconds without its unit, for columns that carry it in the head. */
export function msNumber(value: Maybe): string {
  if (absent(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999.5) return int(value);
  return fixed(value, size >= 99.95 ? 0 : size !== 0 && size < 0.095 ? 3 : 1);
}

/** "9.5 MiB". */
export function bytes(value: Maybe): string {
  if (absent(value)) return NONE;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? int(size) : fixed(size, size >= 99.95 ? 0 : 1)}${NBSP}${units[unit]}`;
}

/** "1 token", "431 tokens". */
export function count(value: Maybe, one: string, many = `${one}s`): string {
  return absent(value) ? NONE : `${int(value)} ${value === 1 ? one : many}`;
}

/** A change with its sign: "+6.0", "−808". */
export function signed(value: Maybe, write: (size: number) => string): string {
  if (absent(value)) return NONE;
  if (value === 0) return "0";
  return `${value > 0 ? "+" : "−"}${write(Math.abs(value))}`;
}
