// Before the first paint: the colours that were chosen last. A classic script, since modules run later.
"use strict";
(() => {
  try {
    const chosen = JSON.parse(localStorage.getItem("exo.theme"));
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is off: the system's choice stands.
  }
})();
