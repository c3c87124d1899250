import { describe, expect, it } from "vitest";
import { listsServers } from "../src/panels/registry/load";
import { fakeKernel, manyTools, PARTS, REGISTRY, toolRow } from "./fixtures";
import { button, change, choose, click, field, mount, press, settle, type } from "./dom";

function open(registry = REGISTRY) {
  const kernel = fakeKernel({ ...PARTS, registry });
  kernel.client.panel.value = "registry";
  return { kernel, root: mount(kernel.client) };
}
const rows = (root: Element) => [...root.querySelectorAll<HTMLElement>('table[aria-label="Tools"] tbody tr:not(.gap)')];

describe("tools", () => {
  it("draws few rows of 5,000 tools, and the right ones after scrolling", async () => {
    const { root } = open({ ...REGISTRY, tools: manyTools(5000) });
    expect(rows(root).length).toBeLessThan(60);
    expect(root.querySelector("table[aria-rowcount]")!.getAttribute("aria-rowcount")).toBe("5001");
    const box = root.querySelector<HTMLElement>(".scroll.virtual")!;
    await change(() => {
      box.scrollTop = 26 * 3000;
      box.dispatchEvent(new Event("scroll"));
    });
    const names = rows(root).map((row) => row.querySelector("td")!.textContent);
    expect(names).toContain("tool_3000");
    expect(names.length).toBeLessThan(60);
    const gaps = [...root.querySelectorAll<HTMLElement>("tr.gap td")].map((cell) => parseFloat(cell.style.height));
    expect(gaps.reduce((a, b) => a + b) + 26 * names.length).toBe(26 * 5000);
  });

  it("reaches the last of 5,000 rows by key, with the focus on it", async () => {
    const { root } = open({ ...REGISTRY, tools: manyTools(5000) });
    const first = rows(root)[0]!;
    first.focus();
    await press(first, "End");
    expect(document.activeElement?.textContent).toContain("tool_4999");
    expect((document.activeElement as HTMLElement).tabIndex).toBe(0);
  });

  it("searches name, description and argument, and says when nothing matches", async () => {
    const { root } = open({ ...REGISTRY, tools: [...REGISTRY.tools, { ...toolRow(["zeta", "files", "read", 1, 1]), arguments: ["postcode"] }] });
    await type(field(root, "Search tools"), "postcode");
    expect(rows(root).map((row) => row.querySelector("td")!.textContent)).toEqual(["zeta"]);
    await type(field(root, "Search tools"), "nothing like it");
    expect(root.textContent).toContain("No tool matches");
    await click(button(root, "Clear the search"));
    expect(rows(root)).toHaveLength(21);
  });

  it("filters by failing checks and by server", async () => {
    const { root } = open();
    await click(field(root, /^failing checks/) as unknown as HTMLElement);
    expect(rows(root)).toHaveLength(2);
    await click(button(root, /^github/));
    expect(rows(root)).toHaveLength(0);
  });

  it("shows signature and schema of the chosen tool, as text", async () => {
    const { kernel, root } = open();
    await click(rows(root)[11]!);
    await settle();
    expect(kernel.asked("registry.tool")).toEqual([{ name: "issue_write" }]);
    const detail = root.querySelector(".detail")!;
    expect(detail.textContent).toContain("431 tokens, signature −93");
    expect(detail.querySelector("pre.schema")!.textContent).toContain('"inputSchema"');
  });

  it("does not show an answer about another tool", async () => {
    const kernel = fakeKernel(PARTS, {});
    kernel.client.panel.value = "registry";
    const root = mount(kernel.client);
    await click(rows(root)[0]!);
    await click(rows(root)[1]!);
    await change(() => kernel.reply(1, { name: "actions_list" }));
    expect(root.querySelector(".detail")!.textContent).toContain("Reading the schema");
  });

  it("takes an example of the tool to Routing", async () => {
    const { kernel, root } = open();
    await click(rows(root)[11]!);
    await settle();
    await click(button(root, "Route to it"));
    expect(kernel.client.panel.value).toBe("routing");
    expect(field(root, "Request").value).toBe("Close 482 as a duplicate of 467.");
  });

  it("keeps hostile names and schemas as text", async () => {
    const evil = "<b onclick=1>x</b><script>1</script>";
    const { root } = open({ ...REGISTRY, tools: [{ ...toolRow([evil, evil, "read", 1, 1]), description: evil, checks: [{ severity: "error", text: evil }] }], servers: [{ ...REGISTRY.servers[3]!, name: evil, last_line: evil }] });
    await click(rows(root)[0]!);
    await settle();
    expect(root.querySelector("script, b[onclick]")).toBeNull();
    expect(root.textContent!.split(evil).length).toBeGreaterThan(4);
  });
});

describe("servers", () => {
  it("says of a failed server what it wrote last, and retries it", async () => {
    const { kernel, root } = open();
    const note = root.querySelector(".note.bad")!;
    expect(note.textContent).toContain("calendar did not start");
    expect(note.textContent).toContain("CALDAV_URL is not set");
    await click(button(note, "Retry"));
    expect(kernel.asked("registry.retry")).toEqual([{ name: "calendar" }]);
  });

  it("retries with another command and other variables, on a click and not before", async () => {
    const { kernel, root } = open();
    const note = root.querySelector(".note.bad")!;
    await click(button(note, "Change…"));
    expect(note.textContent).toContain("Set now: CALDAV_TOKEN");
    await type(field(note, /^Command/), "calendar-mcp --verbose");
    await type(field(note, /^Variables/), "CALDAV_URL=http://127.0.0.1/a=b\n\nCALDAV_TOKEN\n");
    expect(kernel.asked("registry.retry")).toEqual([]);
    await click(button(note, "Retry with changes"));
    const env = { CALDAV_URL: "http://127.0.0.1/a=b", CALDAV_TOKEN: null };
    expect(kernel.asked("registry.retry")).toEqual([{ name: "calendar", line: "calendar-mcp --verbose", env }]);
  });

  it("lists what is wrong with servers and with tools that are not there", () => {
    const text = "mail: its answer breaks the protocol";
    const { root } = open({ ...REGISTRY, problems: [{ severity: "error", text }] });
    expect([...root.querySelectorAll(".note")].map((note) => note.textContent)).toContain(`Left out or amiss: 1${text}`);
  });

  it("stops the chosen server", async () => {
    const { kernel, root } = open();
    await click(button(root, /^github/));
    await click(button(root, "Stop github"));
    expect(kernel.asked("registry.stop")).toEqual([{ name: "github" }]);
  });
});

describe("loading", () => {
  it("reads a list of servers first, and starts only those that were chosen", async () => {
    const { kernel, root } = open();
    await type(field(root, "Path"), "~/servers.json");
    await click(button(root, "Read, then choose"));
    await settle();
    expect(kernel.asked("registry.list_servers")).toEqual([{ path: "~/servers.json" }]);
    expect(root.textContent).toContain("mail-mcp --read-only");
    expect(root.textContent).toContain("bad: left out: neither command nor URL");
    expect(root.textContent).not.toContain("added");
    expect(kernel.asked("registry.start")).toEqual([]);
    expect(button(root, "Start").getAttribute("aria-disabled")).toBe("true");
    await click(field(root, /^wiki/) as unknown as HTMLElement);
    await click(button(root, "Start 1 server"));
    expect(kernel.asked("registry.start")).toEqual([{ path: "~/servers.json", names: ["wiki"] }]);
  });

  it("connects to a running server by command or URL", async () => {
    const { kernel, root } = open();
    await choose(field(root, /^From/) as unknown as HTMLSelectElement, "running");
    await type(field(root, "Name"), "mine");
    await type(field(root, "Command with arguments"), "python -m mine");
    await click(button(root, "Connect"));
    await click(button(root, "URL"));
    await change(() => kernel.log.forEach((m) => m.kind === "request" && kernel.reply(m.id, null)));
    await type(field(root, "URL"), "http://127.0.0.1:9/mcp");
    await click(button(root, "Connect"));
    expect(kernel.asked("registry.connect")).toEqual([
      { name: "mine", command: "python -m mine" },
      { name: "mine", url: "http://127.0.0.1:9/mcp" },
    ]);
  });

  it("loads a file and tells what could not be read", async () => {
    const { kernel, root } = open();
    await choose(field(root, /^From/) as unknown as HTMLSelectElement, "file");
    await type(field(root, "Path"), "tools.json");
    await click(button(root, "Load"));
    await change(() => kernel.log.forEach((m) => m.kind === "request" && kernel.reply(m.id, { added: 3, problems: ["x has no schema"] })));
    expect(root.textContent).toContain("3 tools added");
    expect(root.textContent).toContain("x has no schema");
  });

  it("takes pasted tools at once, and pasted servers only after a choice", async () => {
    const { kernel, root } = open();
    await choose(field(root, /^From/) as unknown as HTMLSelectElement, "text");
    await type(field(root, "Text"), '{"tools": []}');
    await click(button(root, "Load"));
    expect(kernel.asked("registry.load_text")).toEqual([{ text: '{"tools": []}' }]);
    await type(field(root, "Text"), '{"mcpServers": {}}');
    expect(root.textContent).toContain("Read, then choose");
    expect(listsServers("[]")).toBe(false);
    expect(listsServers("{")).toBe(false);
  });
});
