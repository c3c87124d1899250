/** Plays the film: one step after the other, at most twenty a second, never past a frame that is still to come. */
import { signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { FRAME_MS } from "./film";

export interface Player {
  readonly playing: ReadonlySignal<boolean>;
  /** From the step that is shown, or from the first when it is the last. */
  play(): void;
  pause(): void;
  close(): void;
}

export function openPlayer(step: Signal<number>, steps: () => number, ready: (step: number) => boolean): Player {
  const playing = signal(false);
  let timer: ReturnType<typeof setInterval> | undefined;
  const pause = () => {
    clearInterval(timer);
    timer = undefined;
    playing.value = false;
  };
  const tick = () => {
    const next = step.peek() + 1;
    if (next >= steps()) pause();
    else if (ready(next)) step.value = next;
  };
  // A film of a few steps would be over before it is seen.
  const pace = () => Math.max(FRAME_MS, Math.min(400, 4000 / Math.max(1, steps())));
  return {
    playing,
    play() {
      if (timer !== undefined || steps() < 2) return;
      if (step.peek() >= steps() - 1) step.value = 0;
      playing.value = true;
      timer = setInterval(tick, pace());
    },
    pause,
    close: pause,
  };
}
