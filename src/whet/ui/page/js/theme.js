// Runs before anything is drawn, so that a chosen theme does not flash.
"use strict";

const THEMES = ["system", "light", "dark"];

function storedChoice(name, fallback) {
  try { return localStorage.getItem(`whet-${name}`) ?? fallback; } catch { return fallback; }  // file:// may have none
}

function storeChoice(name, value) {
  try { localStorage.setItem(`whet-${name}`, value); } catch { /* the choice lasts until the page is closed */ }
}

function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

applyTheme(storedChoice("theme", "system"));
