import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Ref } from "preact";
import type { Client } from "../client";
import { prepareCanvas, readTheme, type CanvasTheme } from "../canvas/theme";

/** The inner width of an element, followed as its container is resized. */
export function useWidth<E extends HTMLElement>(initial = 600): [Ref<E>, number] {
  const ref = useRef<E>(null);
  const [width, setWidth] = useState(initial);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const measure = () => {
      if (element.clientWidth > 0) setWidth(element.clientWidth);
    };
    measure();
    if (typeof ResizeObserver === "undefined") return;
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** A canvas drawn anew whenever its parent renders, its size changes or the theme does. */
export function Canvas({ client, width, height, draw, label, class: extra }: {
  client: Client;
  width: number;
  height: number;
  draw: (context: CanvasRenderingContext2D, theme: CanvasTheme) => void;
  /** Without a label the canvas is decoration and hidden from assistive technology. */
  label?: string;
  class?: string;
}) {
  const ref = useRef<HTMLCanvasElement>(null);
  const theme = client.theme.value;
  useLayoutEffect(() => {
    const canvas = ref.current;
    const context = canvas && prepareCanvas(canvas, width, height);
    if (canvas && context) draw(context, readTheme(canvas));
  }, [width, height, draw, theme]);
  return (
    <canvas
      ref={ref}
      class={extra}
      style={{ width, height }}
      role={label ? "img" : undefined}
      aria-label={label}
      aria-hidden={label ? undefined : true}
    />
  );
}
