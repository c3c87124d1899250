/** Light or dark: what the view was told, else what Lab (or another host) says, else what the system prefers. */
import type { Client, Theme } from "./client";

function hostTheme(): Theme {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false" ? "dark" : "light";
  if (vscodeThemeKind !== undefined) return /dark|high-contrast$/.test(vscodeThemeKind) ? "dark" : "light";
  return window.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Keeps the view's theme current; `told` gives the theme it was told, or null. Returns what ends it and an update. */
export function followTheme(client: Client, told: () => Theme | null): { update(): void; end(): void } {
  const update = () => {
    const host = hostTheme();
    client.theme.value = told() ?? host;
    client.ownColours.value = client.theme.value !== host;
  };
  const observer = new MutationObserver(update);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const preference = window.matchMedia?.("(prefers-color-scheme: dark)");
  preference?.addEventListener?.("change", update);
  update();
  return {
    update,
    end: () => {
      observer.disconnect();
      preference?.removeEventListener?.("change", update);
    },
  };
}
