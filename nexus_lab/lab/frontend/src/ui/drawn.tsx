/** What the kernel draws: its trees become elements, and the fields and buttons in them the view's values. */
import { createElement, type ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { takeKey } from "../canvas/walk";
import { problemOf, type Client } from "../client";
import type { DrawnNode, ErrorInfo } from "../protocol";
import { Problem } from "./status";
import { useReply } from "./reply";

const made = (node: DrawnNode): ComponentChildren => {
  if (typeof node === "string") return node;
  const [tag, attributes, ...inside] = node;
  return createElement(tag, attributes, ...inside.map(made));
};

/**
 * A named field sets its value when it is changed, `data-set` those it holds when it is pressed; `data-call` asks the
 * kernel for what it names. All drawings of a panel share their values.
 */
export function Drawn({ client, method, name, version }: { client: Client; method: string; name: string; version: number }) {
  const values = client.keep<Record<string, string>>("drawn", {});
  const [tree, unknown] = useReply<DrawnNode>(client, method, { name, values: values.value }, version);
  const [fault, setFault] = useState<ErrorInfo | null>(null);
  // What was drawn last stays until the next is here, and with it the focus.
  const last = useRef<DrawnNode>("");
  if (tree) last.current = tree;
  const shown = useMemo(() => made(last.current), [last.current]);
  const act = (event: Event) => {
    const from = (event.target as Element).closest<HTMLInputElement>("[name],[data-set],[data-call]");
    if (!from || !!from.name !== (event.type === "change")) return;
    const { set, call } = from.dataset;
    const value = from.type !== "checkbox" ? from.value : from.checked ? "yes" : "";
    const given = from.name ? { [from.name]: value } : JSON.parse(set ?? "{}");
    values.value = { ...values.value, ...given };
    if (!call) return;
    client.request(call, { values: values.value }).then(
      () => setFault(null),
      (error: unknown) => setFault(problemOf(error)),
    );
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const pressed = event.key === "Enter" || event.key === " ";
    if (!pressed || event.target instanceof HTMLElement) return;
    takeKey(event);
    act(event);
  };
  return (
    <div onClick={act} onChange={act} onKeyDown={onKeyDown}>
      {shown}
      <Problem fault={fault ?? unknown} />
    </div>
  );
}
