// The page works without this: it adds a theme switch, a filter, and "expand all".
(() => {
  "use strict";
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();

  const turns = [...document.querySelectorAll("tbody.turn")];
  const details = turns.map((turn) => turn.querySelector("details"));
  const tools = document.querySelector(".tools");
  if (turns.length) {
    tools.hidden = false;
    const toggle = document.getElementById("toggle");
    const nameToggle = () => {
      toggle.textContent = details.every((item) => item.open) ? "Collapse all" : "Expand all";
    };
    toggle.addEventListener("click", () => {
      const open = !details.every((item) => item.open);
      details.forEach((item) => { item.open = open; });
    });
    details.forEach((item) => item.addEventListener("toggle", nameToggle));

    const filter = document.getElementById("filter");
    const words = turns.map((turn) => turn.textContent.toLowerCase());
    filter.addEventListener("input", () => {
      const wanted = filter.value.trim().toLowerCase();
      let left = 0;
      turns.forEach((turn, index) => {
        turn.hidden = !words[index].includes(wanted);
        left += turn.hidden ? 0 : 1;
      });
      document.getElementById("nomatch").hidden = left > 0;
    });
  }

  // Paper cannot be expanded: print what is folded, then fold it again.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((item) => { item.open = true; });
  });
  window.addEventListener("afterprint", () => {
    folded.forEach((item) => { item.open = false; });
    folded = [];
  });
})();
