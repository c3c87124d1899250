import { act } from "preact/test-utils";
import { describe, expect, it, vi } from "vitest";
import widget, { type WidgetModel } from "../src/widget";
import { PARTS } from "./fixtures";
import { settle } from "./dom";

function fakeModel(traits: { panel?: string | null; theme?: string | null } = {}) {
  const heard = new Map<string, Set<(...parts: never[]) => void>>();
  const sent: { kind: string; revision?: number }[] = [];
  const model: WidgetModel = {
    get: (name) => traits[name] ?? null,
    on: (event, callback) => void heard.set(event, (heard.get(event) ?? new Set()).add(callback)),
    off: (event, callback) => void heard.get(event)?.delete(callback),
    send: (content) => void sent.push(content as never),
  };
  const fire = (event: string, ...parts: unknown[]) => [...(heard.get(event) ?? [])].forEach((callback) => callback(...(parts as never[])));
  return { model, sent, traits, fire, listeners: () => [...heard.values()].reduce((sum, set) => sum + set.size, 0) };
}

function show(model: WidgetModel): { el: HTMLElement; end: () => void } {
  const el = document.createElement("div");
  document.body.append(el);
  let end: () => void = () => undefined;
  void act(() => {
    end = widget.render({ model, el });
  });
  return { el, end: () => void act(end) };
}

describe("widget", () => {
  it("shares one connection among its views, and gives each its own panel", async () => {
    const fake = fakeModel();
    const [one, two] = [show(fake.model), show(fake.model)];
    expect(fake.sent.filter(({ kind }) => kind === "hello")).toHaveLength(1);
    await act(async () => fake.fire("msg:custom", { kind: "parts", revision: 1, parts: PARTS }, []));
    one.el.querySelector<HTMLElement>('[data-panel="routing"]')!.click();
    await settle();
    const shown = ({ el }: { el: HTMLElement }) => el.querySelector('[aria-selected="true"][role="tab"]')!.textContent;
    expect([shown(one), shown(two)]).toEqual(["Routing", "Registry20"]);
    const acks = () => fake.sent.filter(({ kind }) => kind === "ack");
    await vi.waitFor(() => expect(acks()).toEqual([{ kind: "ack", revision: 1 }]), 5000);
    one.end();
    two.end();
    expect(fake.listeners()).toBe(0);
    expect(one.el.textContent).toBe("");
  });

  it("follows the panel that Python sets", async () => {
    const fake = fakeModel({ panel: "routing" });
    const { el, end } = show(fake.model);
    await act(async () => fake.fire("msg:custom", { kind: "parts", revision: 1, parts: PARTS }, []));
    expect(el.querySelector('[role="region"]')!.getAttribute("aria-label")).toBe("Routing");
    fake.traits.panel = null;
    await act(async () => fake.fire("change:panel"));
    expect(el.querySelector('[role="tablist"]')).not.toBeNull();
    end();
  });

  it("follows Lab's theme until it is given another", async () => {
    document.body.dataset.jpThemeLight = "true";
    const fake = fakeModel();
    const { el, end } = show(fake.model);
    const root = el.querySelector<HTMLElement>(".nl")!;
    expect([root.dataset.theme, root.dataset.own]).toEqual(["light", undefined]);
    document.body.dataset.jpThemeLight = "false";
    await settle();
    expect([root.dataset.theme, root.dataset.own]).toEqual(["dark", undefined]);
    fake.traits.theme = "light";
    await act(async () => fake.fire("change:theme"));
    expect([root.dataset.theme, root.dataset.own]).toEqual(["light", "true"]);
    delete document.body.dataset.jpThemeLight;
    end();
  });

  it("notices that its comm is dead", async () => {
    const fake = fakeModel();
    const { el, end } = show(fake.model);
    await act(async () => fake.fire("comm_live_update"));
    expect(el.textContent).toContain("kernel gone");
    end();
  });
});
