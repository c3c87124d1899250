/** A view in a document, driven as a user would. */
import { render, type JSX } from "preact";
import { act } from "preact/test-utils";
import { afterEach, expect } from "vitest";
import { Workbench } from "../src/app";
import type { Client } from "../src/client";
import type { PanelName } from "../src/protocol";

let shown: HTMLElement | null = null;

function put(view: JSX.Element): HTMLElement {
  const place = document.createElement("div");
  document.body.append(place);
  shown = place;
  void act(() => render(view, place));
  return place;
}

export const mount = (client: Client, only: PanelName | null = null) => put(<Workbench client={client} only={only} />);

/** A panel without the shell around it, once what it asked for at first has come. */
export async function draw(panel: JSX.Element): Promise<HTMLElement> {
  const place = put(<div class="nl">{panel}</div>);
  await settled();
  return place;
}

export function unmount(): void {
  if (!shown) return;
  const place = shown;
  shown = null;
  void act(() => render(null, place));
  place.remove();
}

afterEach(unmount);

/** Lets replies, effects and redraws happen. */
export async function settle(): Promise<void> {
  await act(async () => {
    await new Promise((resolve) => setTimeout(resolve, 5));
  });
}

/** Replies, and what follows from them: an effect may ask for more. */
export async function settled(): Promise<void> {
  for (let round = 0; round < 3; round += 1) await settle();
}

export async function change(action: () => void): Promise<void> {
  await act(async () => action());
  await settle();
}

const nameOf = (element: Element) =>
  element.getAttribute("aria-label") ?? element.closest("label")?.textContent ?? element.textContent ?? "";

function pick<E extends Element>(root: Element, selector: string, name: string | RegExp): E {
  const fits = (text: string) => (typeof name === "string" ? text.trim() === name : name.test(text.trim()));
  const found = [...root.querySelectorAll<E>(selector)].filter((element) => fits(nameOf(element)));
  expect(found.length, `${selector} named ${String(name)}`).toBeGreaterThan(0);
  return found[0]!;
}

export const button = (root: Element, name: string | RegExp) => pick<HTMLButtonElement>(root, "button", name);
export const field = (root: Element, name: string | RegExp) =>
  pick<HTMLInputElement>(root, "input, textarea, select", name);

export async function click(element: HTMLElement): Promise<void> {
  await change(() => element.click());
}

export async function press(element: Element, key: string, modifiers: KeyboardEventInit = {}): Promise<KeyboardEvent> {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...modifiers });
  await change(() => void element.dispatchEvent(event));
  return event;
}

/** Types into a field; `leave` also commits it, as leaving a number field does. */
export async function type(element: HTMLInputElement | HTMLTextAreaElement, text: string, leave = false): Promise<void> {
  await change(() => {
    element.value = text;
    element.dispatchEvent(new Event("input", { bubbles: true }));
  });
  if (leave) await change(() => void element.dispatchEvent(new Event("change", { bubbles: true })));
}

export async function choose(element: HTMLSelectElement, value: string): Promise<void> {
  await change(() => {
    element.value = value;
    element.dispatchEvent(new Event("change", { bubbles: true }));
  });
}
