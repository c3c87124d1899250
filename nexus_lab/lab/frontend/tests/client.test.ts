import { describe, expect, it, vi } from "vitest";
import { problemOf } from "../src/client";
import { BAR, fakeKernel } from "./fixtures";

const acks = (log: readonly { kind: string; revision?: number }[]) => log.filter(({ kind }) => kind === "ack").map(({ revision }) => revision);

describe("client", () => {
  it("says hello first, and nothing else by itself", () => {
    const { log } = fakeKernel({}, {});
    expect(log).toEqual([{ kind: "hello" }]);
  });

  it("gives each reply to the request that asked, whatever the order", async () => {
    const kernel = fakeKernel({}, {});
    const first = kernel.client.request<string>("registry.tool", { name: "a" });
    const second = kernel.client.request<string>("registry.tool", { name: "b" });
    kernel.reply(2, "for b");
    kernel.reply(1, "for a");
    expect((await first).result).toBe("for a");
    expect((await second).result).toBe("for b");
    expect(kernel.asked("registry.tool")).toEqual([{ name: "a" }, { name: "b" }]);
    expect(kernel.client.pending.value).toEqual([]);
  });

  it("rejects with the kernel's own error", async () => {
    const kernel = fakeKernel({}, {});
    const asked = kernel.client.request("models.load", { path: "/x" });
    const error = { type: "ModelFileError", message: "truncated", next_step: "get it again" };
    kernel.fail(1, error);
    await expect(asked.catch((e: unknown) => Promise.reject(problemOf(e)))).rejects.toEqual(error);
  });

  it("drops a reply that nobody waits for", () => {
    const kernel = fakeKernel({}, {});
    expect(() => kernel.reply(99, "late")).not.toThrow();
  });

  it("acknowledges parts after their frame, each revision, in order", async () => {
    const kernel = fakeKernel({ bar: BAR }, {});
    expect(acks(kernel.log as never)).toEqual([]);
    await vi.waitFor(() => expect(acks(kernel.log as never)).toEqual([1]), 5000);
    kernel.push({ bar: { ...BAR, context_used: 2 } });
    kernel.push({ bar: { ...BAR, context_used: 3 } });
    expect(kernel.client.told.bar.value?.context_used).toBe(3);
    await vi.waitFor(() => expect(acks(kernel.log as never)).toEqual([1, 2, 3]), 5000);
  });

  it("acknowledges where no frame comes, as on a hidden page", async () => {
    vi.useFakeTimers();
    vi.stubGlobal("requestAnimationFrame", () => 0);
    const kernel = fakeKernel({ bar: BAR }, {});
    vi.advanceTimersByTime(1001);
    expect(acks(kernel.log as never)).toEqual([1]);
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  it("keeps parts that a message does not name, and ignores unknown ones", () => {
    const kernel = fakeKernel({ bar: BAR }, {});
    kernel.push({ models: null, nonsense: 1 } as never);
    expect(kernel.client.told.bar.value).toBe(BAR);
    expect("nonsense" in kernel.client.told).toBe(false);
  });

  it("puts the items of a list that it has around those that come", () => {
    const kernel = fakeKernel({}, {});
    const turns = (numbers: number[]) => ({ agent: { turns: numbers } }) as never;
    const shown = () => kernel.client.told.agent.value?.turns;
    const steps: [number[], [number, number, number, number], number[]][] = [
      [[4], [0, 3, 0, 0], [1, 2, 3, 4]],
      [[5], [1, 3, 0, 0], [2, 3, 4, 5]],
      [[1], [0, 0, 3, 1], [1, 2, 3, 4]],
      [[9], [0, 1, 2, 0], [1, 9, 3, 4]],
    ];
    kernel.push(turns([1, 2, 3]));
    for (const [items, ends, whole] of steps) {
      kernel.push(turns(items), { agent: { turns: ends } });
      expect(shown()).toEqual(whole);
    }
    expect(kernel.log.filter(({ kind }) => kind === "hello")).toHaveLength(1);
  });

  it("says hello again after a message that it missed, once, and takes nothing until it has everything", () => {
    const kernel = fakeKernel({ bar: BAR }, {});
    const hellos = () => kernel.log.filter(({ kind }) => kind === "hello").length;
    kernel.miss();
    for (const context_used of [7, 8]) kernel.push({ bar: { ...BAR, context_used } }, {});
    expect(hellos()).toBe(2);
    expect(kernel.client.told.bar.value).toBe(BAR);
    kernel.push({ bar: { ...BAR, context_used: 9 } });
    kernel.push({ bar: { ...BAR, context_used: 10 } }, {});
    expect(kernel.client.told.bar.value?.context_used).toBe(10);
    expect(hellos()).toBe(2);
  });

  it("tells everyone who waits that the kernel is gone", async () => {
    const kernel = fakeKernel({ bar: BAR }, {});
    const asked = kernel.client.request("agent.ask", { text: "x" });
    kernel.close();
    await expect(asked).rejects.toThrow(/gone/);
    expect(kernel.client.alive.value).toBe(false);
    expect(kernel.client.stoppable.value).toBe(true); // what the bar said last; nothing newer is known
    await expect(kernel.client.request("agent.ask")).rejects.toThrow(/gone/);
  });

  it("lets Stop be used from the moment a run is asked for", () => {
    const kernel = fakeKernel({ bar: { ...BAR, engine: "idle", holder: null } }, {});
    const { client } = kernel;
    expect(client.stoppable.value).toBe(false);
    void client.request("agent.ask", { text: "x" }).catch(() => undefined);
    expect(client.stoppable.value).toBe(true);
    kernel.reply(1, null);
    expect(client.stoppable.value).toBe(false);
    void client.request("registry.tool", { name: "a" }).catch(() => undefined);
    expect(client.stoppable.value).toBe(false);
    for (const [engine, held] of [["busy", true], ["waiting", true], ["loading", true], ["stopping", true], ["unloaded", false]] as const) {
      kernel.push({ bar: { ...BAR, engine } });
      expect(client.stoppable.value, engine).toBe(held);
    }
  });
});
