/** What JSX becomes in the bundle (see `build.mjs`). */
import { h as create, type ComponentChildren, type FunctionComponent, type VNode } from "preact";

export { Fragment } from "preact";

/** Attributes that the bundle writes short everywhere; elements of the document get them by their full name. */
export const ATTRIBUTES: Record<string, string> = {
  class: "class",
  disabled: "disabled",
  onClick: "onClick",
  onInput: "onInput",
  onKeyDown: "onKeyDown",
  placeholder: "placeholder",
  role: "role",
  scope: "scope",
  tabIndex: "tabIndex",
  title: "title",
};

type Props = Record<string, unknown>;

export function h(type: string | FunctionComponent<Props>, props: Props | null, ...children: ComponentChildren[]): VNode {
  if (typeof type !== "string") return create(type, props, ...children) as VNode;
  const named: Props = {};
  for (const name in props) named[ATTRIBUTES[name] ?? name] = props[name];
  return create(type, named, ...children) as VNode;
}
