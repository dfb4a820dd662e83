"use strict";
// The theme is set before the page is drawn. A page inside a sandbox, as in MLflow's UI, may not remember anything.
const remembered = {
  get() { try { return localStorage.getItem("trisweep-theme"); } catch { return null; } },
  set(theme) { try { localStorage.setItem("trisweep-theme", theme); } catch { /* it holds for this visit only */ } },
};

function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

applyTheme(remembered.get());
