import * as React from "react";

type Theme = "light" | "dark";

function labTheme(): Theme {
  return document.body.dataset["jpThemeLight"] === "false" ? "dark" : "light";
}

function watchTheme(tell: () => void): () => void {
  const observer = new MutationObserver(tell);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  return () => observer.disconnect();
}

/** Lab's theme, followed while it changes. */
export function useTheme(): Theme {
  return React.useSyncExternalStore(watchTheme, labTheme);
}
