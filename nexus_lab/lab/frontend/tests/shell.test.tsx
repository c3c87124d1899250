import { act } from "preact/test-utils";
import { describe, expect, it, vi } from "vitest";
import { AGENT, BAR, fakeKernel, PARTS, PREFILL } from "./fixtures";
import { button, change, click, field, mount, press, settle, type } from "./dom";

const IDLE = { ...BAR, engine: "idle" as const, holder: null };
const selected = (root: Element) => root.querySelector('[role="tab"][aria-selected="true"]')!.textContent;

describe("what cannot be drawn", () => {
  it("says so, and the other panels go on", async () => {
    const broken = { ...PARTS.routing!, decisions: null } as never;
    const kernel = fakeKernel({ ...PARTS, routing: broken });
    const root = mount(kernel.client);
    await change(() => (kernel.client.panel.value = "routing"));
    expect(root.querySelector('.panel [role="alert"]')).not.toBeNull();
    await change(() => (kernel.client.panel.value = "session"));
    expect(root.textContent).toContain("Import transcript");
    await change(() => kernel.push({ bar: { ...BAR, engine: "nonsense" as never } }));
    expect(root.textContent).toContain("Import transcript");
  });
});

describe("shell", () => {
  it("has a tab list whose tabs and panel name each other", () => {
    const root = mount(fakeKernel().client);
    const tab = root.querySelector('[role="tab"][aria-selected="true"]')!;
    const panel = root.querySelector('[role="tabpanel"]')!;
    expect(tab.getAttribute("aria-controls")).toBe(panel.id);
    expect(panel.getAttribute("aria-labelledby")).toBe(tab.id);
    expect(root.querySelectorAll('[role="tab"]')).toHaveLength(7);
    expect(root.querySelectorAll('[role="tab"][tabindex="0"]')).toHaveLength(1);
  });

  it("walks panels with the arrows on the tabs and with the brackets elsewhere", async () => {
    const kernel = fakeKernel();
    kernel.client.panel.value = "routing";
    const root = mount(kernel.client);
    const tab = root.querySelector<HTMLElement>('[data-panel="routing"]')!;
    tab.focus();
    await press(tab, "ArrowLeft");
    expect(selected(root)).toContain("Registry");
    expect(document.activeElement).toBe(root.querySelector('[data-panel="registry"]'));
    const panel = root.querySelector(".panel")!;
    await press(panel, "[");
    await press(root.querySelector(".panel")!, "[");
    expect(selected(root)).toContain("Session");
    const event = await press(root.querySelector(".panel")!, "]");
    expect(selected(root)).toContain("Models");
    expect(event.defaultPrevented).toBe(true);
  });

  it("leaves brackets and ? to whoever types", async () => {
    const kernel = fakeKernel();
    kernel.client.panel.value = "routing";
    const root = mount(kernel.client);
    const request = field(root, "Request");
    const event = await press(request, "]");
    await press(request, "?");
    expect(selected(root)).toBe("Routing");
    expect(event.defaultPrevented).toBe(false);
    expect(root.querySelector("dialog[open]")).toBeNull();
  });

  it("stops its keys from reaching the page, and leaves chords to it", async () => {
    const root = mount(fakeKernel().client);
    const heard: string[] = [];
    const hear = (event: KeyboardEvent) => heard.push(event.key);
    document.addEventListener("keydown", hear);
    await press(root.querySelector(".panel")!, "]");
    await press(root.querySelector(".panel")!, "s", { ctrlKey: true });
    document.removeEventListener("keydown", hear);
    expect(heard).toEqual(["s"]);
  });

  it("marks the element with the focus for Lab while one of its keys is pressed", async () => {
    const panel = mount(fakeKernel().client).querySelector(".panel")!;
    await press(panel, "ArrowRight");
    expect(panel.hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
    await press(panel, "s", { ctrlKey: true });
    expect(panel.hasAttribute("data-lm-suppress-shortcuts")).toBe(false);
    await press(panel, "d");
    await press(document.body, "d");
    expect(document.querySelector("[data-lm-suppress-shortcuts]")).toBeNull();
  });

  it("carries out commands that reach its root, and no others", async () => {
    const kernel = fakeKernel();
    const root = mount(kernel.client).querySelector(".nl")!;
    const send = async (command: string) => {
      await act(() => {
        root.dispatchEvent(new CustomEvent("nexus-lab:command", { detail: { command } }));
      });
    };
    await send("step-back");
    await send("step-forward");
    expect(kernel.asked("cache.back")).toEqual([{}]);
    expect(kernel.asked("cache.forward")).toEqual([{}]);
    expect(selected(root)).toContain("Cache");
    await send("next-decision");
    expect(selected(root)).toContain("Routing");
    expect(kernel.client.keep<string | null>("routing.chosen", null).value).toBe(PARTS.routing!.decisions[1]!.id);
    await send("compare");
    expect(selected(root)).toContain("Session");
    await send("stop");
    expect(kernel.asked("stop")).toHaveLength(1);
    await send("no such command");
    expect(selected(root)).toContain("Session");
  });

  it("shows the key sheet for ?", async () => {
    const root = mount(fakeKernel().client);
    await press(root.querySelector(".panel")!, "?");
    expect(root.querySelector("dialog[open]")!.textContent).toContain("stop the turn, also during prefill");
  });

  it("stops with Esc while something runs, also while typing, and leaves Esc alone when idle", async () => {
    const kernel = fakeKernel({ ...PARTS, bar: { ...BAR, ...PREFILL } });
    kernel.client.panel.value = "agent";
    const root = mount(kernel.client);
    const event = await press(field(root, /^Message/), "Escape");
    expect(kernel.asked("stop")).toEqual([{}]);
    expect(event.defaultPrevented).toBe(true);
    kernel.push({ bar: IDLE });
    kernel.reply(kernel.log.flatMap((m) => (m.kind === "request" && m.method === "stop" ? [m.id] : []))[0]!, null);
    await settle();
    const idle = await press(root.querySelector(".panel")!, "Escape");
    expect(idle.defaultPrevented).toBe(false);
    expect(kernel.asked("stop")).toHaveLength(1);
  });

  it("always shows Stop, says whether there is something to stop, and never loses a press", async () => {
    const kernel = fakeKernel({ ...PARTS, bar: IDLE });
    const root = mount(kernel.client);
    const stop = () => button(root.querySelector(".bar")!, /^Stop/);
    expect(stop().getAttribute("aria-disabled")).toBe("true");
    expect(stop().disabled).toBe(false);
    await change(() => void kernel.client.request("agent.ask", { text: "x" }).catch(() => undefined));
    expect(stop().getAttribute("aria-disabled")).toBeNull();
    await click(stop());
    expect(kernel.asked("stop")).toHaveLength(1);
  });

  it("draws a running prefill with its progress", () => {
    const root = mount(fakeKernel({ ...PARTS, bar: { ...BAR, ...PREFILL } }).client);
    const progress = root.querySelector('.bar [role="progressbar"]')!;
    expect(progress.getAttribute("aria-valuenow")).toBe("512");
    expect(root.querySelector(".bar")!.textContent).toContain("512 / 1,179");
  });

  it("says that the kernel is gone", async () => {
    const kernel = fakeKernel();
    const root = mount(kernel.client);
    await change(() => kernel.close());
    expect(root.querySelector(".bar")!.textContent).toContain("kernel gone");
  });

  it("says after a while that no kernel answers", async () => {
    vi.useFakeTimers();
    const root = mount(fakeKernel({}, {}).client);
    expect(root.textContent).toContain("Waiting for the kernel");
    await act(async () => void vi.advanceTimersByTime(5001));
    expect(root.textContent).toContain("No kernel answers");
    vi.useRealTimers();
  });

  it("begins with the models where none is loaded, and stays where the user went", async () => {
    const unloaded = { ...BAR, engine: "unloaded" as const };
    const kernel = fakeKernel({}, {});
    const root = mount(kernel.client);
    await change(() => kernel.push({ ...PARTS, bar: unloaded }));
    expect(selected(root)).toBe("Models");
    await change(() => (kernel.client.panel.value = "registry"));
    await change(() => kernel.push({ bar: { ...unloaded, context_used: 1 } }));
    expect(selected(root)).toContain("Registry");
  });

  it("shows one panel alone without tabs", () => {
    const root = mount(fakeKernel().client, "routing");
    expect(root.querySelector('[role="tablist"]')).toBeNull();
    expect(root.querySelector('[role="region"]')!.getAttribute("aria-label")).toBe("Routing");
  });

  it("keeps focus, caret and text over updates of parts", async () => {
    const kernel = fakeKernel();
    kernel.client.panel.value = "agent";
    const root = mount(kernel.client);
    const message = field(root, /^Message/) as unknown as HTMLTextAreaElement;
    message.focus();
    await type(message, "half a sen");
    message.setSelectionRange(4, 4);
    for (let i = 0; i < 5; i += 1) {
      await change(() =>
        kernel.push({
          bar: { ...BAR, context_used: i },
          agent: { ...AGENT, turns: [...AGENT.turns, { ...AGENT.turns[0]!, number: 5 + i }] },
        }),
      );
    }
    expect(document.activeElement).toBe(message);
    expect(message.isConnected).toBe(true);
    expect([message.value, message.selectionStart]).toEqual(["half a sen", 4]);
  });

  it("keeps drafts over a change of panel", async () => {
    const kernel = fakeKernel();
    kernel.client.panel.value = "routing";
    const root = mount(kernel.client);
    await type(field(root, "Request"), "find the bug");
    await change(() => (kernel.client.panel.value = "agent"));
    await change(() => (kernel.client.panel.value = "routing"));
    expect(field(root, "Request").value).toBe("find the bug");
  });

  it("names every control and heads every table", async () => {
    const kernel = fakeKernel();
    for (const panel of ["models", "registry", "routing", "agent", "session"] as const) {
      kernel.client.panel.value = panel;
      const root = mount(kernel.client);
      await settle();
      for (const control of root.querySelectorAll("button, input, select, textarea")) {
        const name = control.getAttribute("aria-label") ?? control.closest("label")?.textContent ?? control.textContent;
        expect(name?.trim(), `${panel}: ${control.outerHTML}`).toBeTruthy();
      }
      for (const table of root.querySelectorAll("table")) {
        expect(table.querySelectorAll("thead th").length, panel).toBeGreaterThan(1);
        expect(table.getAttribute("aria-label"), panel).toBeTruthy();
      }
      root.remove();
    }
  });
});
