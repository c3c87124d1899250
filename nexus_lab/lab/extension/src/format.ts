/** Numbers as the whole product writes them: "−" as minus, "–" where there is no value. */

const NONE = "–";
const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : GROUPED.format(value).replace("-", "−");
}

export function number(value: number | null | undefined, digits: number): string {
  return value === null || value === undefined ? NONE : value.toFixed(digits).replace("-", "−");
}

/** A length given in nanoseconds; a point in time has none. */
export function duration(nanoseconds: number | null | undefined): string {
  if (nanoseconds === null || nanoseconds === undefined || nanoseconds === 0) {
    return NONE;
  }
  const ms = nanoseconds / 1e6;
  if (ms >= 1000) {
    return `${(ms / 1000).toFixed(2)} s`;
  }
  return ms >= 100 ? `${ms.toFixed(0)} ms` : ms >= 0.1 ? `${ms.toFixed(1)} ms` : `${(ms * 1000).toFixed(1)} µs`;
}

/** Seconds since the first event of the session. */
export function moment(nanoseconds: number | null | undefined): string {
  return nanoseconds === null || nanoseconds === undefined ? NONE : `${(nanoseconds / 1e9).toFixed(3)} s`;
}
