/**
 * Steps through the program. The card that was asked for is shown at once; the kernel follows, and of many steps
 * asked for in a row only the last is sent once it has answered.
 */
import { computed, effect, signal, type ReadonlySignal } from "@preact/signals";
import { problemOf, type Client } from "../../client";
import type { ErrorInfo } from "../../protocol";

export interface Stepper {
  /** Ops behind the cursor, as the view shows it. */
  readonly shown: ReadonlySignal<number>;
  readonly problem: ReadonlySignal<ErrorInfo | null>;
  goTo(n: number): void;
  by(steps: number): void;
  nextBreakpoint(): void;
  close(): void;
}

/** How long the kernel's answer may run ahead of the part that tells the same. */
const SETTLE_MS = 500;

export function openStepper(client: Pick<Client, "request" | "told">): Stepper {
  const wanted = signal<number | null>(null);
  const problem = signal<ErrorInfo | null>(null);
  const shown = computed(() => wanted.value ?? client.told.cache.value?.cursor ?? 0);
  let asking = false;
  // What the kernel has answered to. Before that, a part that tells the same is of an earlier step.
  let answered: number | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const closeEffect = effect(() => {
    const there = client.told.cache.value?.cursor === wanted.value;
    if (!asking && there && answered === wanted.value) wanted.value = null;
  });
  const settle = (n: number) => {
    answered = n;
    if (client.told.cache.peek()?.cursor === n) wanted.value = null;
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (wanted.peek() === n) wanted.value = null;
    }, SETTLE_MS);
  };
  const ask = async () => {
    if (asking) return;
    asking = true;
    try {
      for (let n = wanted.peek(); n !== null; n = wanted.peek()) {
        await client.request("cache.goto", { n });
        if (wanted.peek() !== n) continue;
        settle(n);
        break;
      }
    } catch (error) {
      problem.value = problemOf(error);
      wanted.value = null;
    } finally {
      asking = false;
    }
  };
  const goTo = (n: number) => {
    const count = client.told.cache.peek()?.ops.length ?? 0;
    const next = Math.max(Math.min(1, count), Math.min(count, n));
    if (next === shown.peek()) return;
    problem.value = null;
    answered = null;
    wanted.value = next;
    void ask();
  };
  return {
    shown,
    problem,
    goTo,
    by: (steps) => goTo(shown.peek() + steps),
    nextBreakpoint() {
      problem.value = null;
      client.request("cache.next_breakpoint").catch((error: unknown) => {
        problem.value = problemOf(error);
      });
    },
    close() {
      closeEffect();
      clearTimeout(timer);
    },
  };
}
