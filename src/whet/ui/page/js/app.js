// Which view an address shows, the theme, and the keys.
"use strict";

const VIEWS = {
  runs: runsPage, run: runPage, recipe: recipePage, report: reportPage, held_out: heldOutPage, compare: comparePage,
  pipeline: experimentPage, comparison: experimentPage, survey: surveyPage,
  rollouts: rolloutsPage, rollout: rolloutPage, prompt: promptPage,
};
const KEYS = [
  ["/", "find: go to the search field"], ["g", "all runs"], ["Esc", "leave a field; back to what is above"],
  ["?", "this list"], ["← →", "in a chart: read it step by step; in a completion: from token to token"],
  ["↑ ↓", "in a list of rollouts: from one to the other; Enter opens it"], ["n p", "the next and the previous rollout"],
];
let leaveView = null;  // stops what the shown view repeats
let shownNumber = 0;  // of the newest address; an older view that is still loading is dropped

function readAddress() {
  const [view, query] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  return [view || "runs", new URLSearchParams(query ?? "")];
}

async function show() {
  const number = (shownNumber += 1);
  const [view, query] = readAddress();
  leaveView?.();
  leaveView = null;
  const main = document.getElementById("main");
  const isCurrent = () => number === shownNumber;
  const page = {
    title: (text) => { if (isCurrent()) document.title = `${plainText(text)} · whet`; },
    trail: (...steps) => { if (isCurrent()) trail(steps); },
    show: (...nodes) => { if (isCurrent()) { main.replaceChildren(...nodes.flat().filter(Boolean)); focusHeading(main); } },
    // Keeps what was chosen in the address, without a new entry in the history.
    note: (chosen) => {
      const kept = new URLSearchParams(query);
      for (const [name, value] of Object.entries(chosen)) {
        if (value === "" || value === undefined || value === null) kept.delete(name); else kept.set(name, value);
      }
      if (isCurrent()) history.replaceState(null, "", `#${view}${[...kept].length ? `?${kept}` : ""}`);
    },
  };
  trail([]);
  document.body.dataset.view = view;
  main.setAttribute("aria-busy", "true");
  try {
    if (!Object.hasOwn(VIEWS, view)) throw new Error("there is no such page");
    const leave = await VIEWS[view](query, page);
    if (isCurrent()) leaveView = leave; else leave?.();
  } catch (error) {
    page.show(h("h1", {}, "This cannot be shown"), h("div", { class: "problem", role: "alert" }, error.message), h("p", {}, link("#runs", "All runs")));
  }
  if (isCurrent()) main.removeAttribute("aria-busy");
}

function trail(steps) {
  document.getElementById("trail").replaceChildren(...steps.flatMap(([name, to]) => [h("span", { class: "quiet", "aria-hidden": true }, "/"), link(to, name)]));
}

// A new view begins at its heading, for readers and for the keyboard.
function focusHeading(main) {
  const heading = main.querySelector("h1");
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function themeButton() {
  const button = document.getElementById("theme");
  const draw = () => { button.textContent = `Theme: ${storedChoice("theme", "system")}`; };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(storedChoice("theme", "system")) + 1) % THEMES.length];
    storeChoice("theme", next);
    applyTheme(next);
    draw();
    announce(`theme: ${next}`);
  });
  draw();
}

function helpDialog() {
  const single = h("input", { type: "checkbox" });
  single.checked = storedChoice("keys", "on") === "on";
  single.addEventListener("change", () => storeChoice("keys", single.checked ? "on" : "off"));
  const close = () => dialog.close();
  const dialog = h("dialog", { "aria-labelledby": "keys" }, h("h2", { id: "keys" }, "Keys"),
    definitions(KEYS.map(([key, meaning]) => [h("kbd", {}, key), meaning])),
    h("label", { class: "filter" }, single, "single keys are shortcuts"), h("button", { type: "button", onclick: close }, "Close"));
  document.body.append(dialog);
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  return dialog;
}

function onKey(event, dialog) {
  const field = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape" && field) { field.blur(); return; }
  const modified = event.ctrlKey || event.metaKey || event.altKey;
  if (field && field.type !== "checkbox" || modified || dialog.open || storedChoice("keys", "on") !== "on") return;
  if (event.key === "/") {
    const search = document.querySelector("main input[type=search]");
    if (search) { search.focus(); search.select(); event.preventDefault(); }
  } else if (event.key === "?") dialog.showModal();
  else if (event.key === "n" || event.key === "p") document.getElementById(event.key === "n" ? "next" : "previous")?.click();
  else if (event.key === "g") location.hash = "#runs";
  else if (event.key === "Escape") [...document.querySelectorAll("#trail a")].at(-2)?.click();
}

themeButton();
const help = helpDialog();
addEventListener("keydown", (event) => onKey(event, help));
addEventListener("hashchange", show);
show();
