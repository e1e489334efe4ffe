// The browser of a run's rollouts: they arrive step by step from the newest; filters and order are applied here.
"use strict";

const FIELDS = ["step", "group", "number", "reward", "correct", "length", "advantage", "kept"];
const ROWS_SHOWN = 50;  // at once
const ORDERS = {
  step: ["newest step first", null],
  advantage: ["largest |advantage|", (of, i) => of.advantage[i] ?? -1],
  high: ["highest reward", (of, i) => of.reward[i] ?? -Infinity],
  low: ["lowest reward", (of, i) => -(of.reward[i] ?? Infinity)],
  long: ["longest", (of, i) => of.length[i]],
  short: ["shortest", (of, i) => -of.length[i]],
};
const selection = { run: "", places: [] };  // what was listed last: the microscope goes through it

function emptyColumns() {
  return { ...Object.fromEntries(FIELDS.map((name) => [name, []])), prompt: [], finish: [], parts: {}, count: 0 };
}

// Appends an answer to the columns; prompts and finishes become text.
function appendColumns(columns, answer) {
  const added = answer.step.length;
  for (const name of FIELDS) for (const value of answer[name]) columns[name].push(value);
  for (const one of answer.prompt) columns.prompt.push(answer.prompts[one]);
  for (const one of answer.finish) columns.finish.push(answer.finishes[one]);
  for (const name of Object.keys(answer.parts)) columns.parts[name] ??= new Array(columns.count).fill(null);
  for (const [name, values] of Object.entries(columns.parts)) {
    for (const value of answer.parts[name] ?? new Array(added).fill(null)) values.push(value);
  }
  columns.count += added;
}

function placeKey(columns, i) {
  return `${columns.step[i]}-${columns.group[i]}-${columns.number[i]}`;
}

// What the fields above the list ask for.
function readFilters(form) {
  const value = (name) => form.elements[name]?.value.trim() ?? "";
  const least = (name) => (value(name) === "" ? -Infinity : Number(value(name)));
  const most = (name) => (value(name) === "" ? Infinity : Number(value(name)));
  return {
    find: value("find"), prompt: value("prompt"), finish: value("finish"), judged: value("judged"), trained: value("trained"), order: value("order") || "step",
    part: value("part"), worth: [least("worth_from"), most("worth_to")], steps: [least("step_from"), most("step_to")],
    lengths: [least("length_from"), most("length_to")],
  };
}

function within(value, [low, high]) {
  return value !== null && value >= low && value <= high;
}

// Indices of the rollouts that are asked for, in order. `matches`: keys of those with the text, null without one.
function chosen(columns, filters, matches) {
  const found = [];
  const bounded = filters.worth[0] > -Infinity || filters.worth[1] < Infinity;
  const worth = filters.part ? columns.parts[filters.part] ?? [] : columns.reward;
  for (let i = 0; i < columns.count; i += 1) {
    if (!within(columns.step[i], filters.steps) || !within(columns.length[i], filters.lengths)) continue;
    if (filters.finish && columns.finish[i] !== filters.finish) continue;
    if (filters.prompt && columns.prompt[i] !== filters.prompt) continue;
    if (filters.judged && String(columns.correct[i]) !== filters.judged) continue;
    if (filters.trained && String(columns.kept[i]) !== filters.trained) continue;
    if (bounded && !within(worth[i] ?? null, filters.worth)) continue;
    if (matches && !matches.has(placeKey(columns, i))) continue;
    found.push(i);
  }
  const by = ORDERS[filters.order]?.[1];
  const newest = (a, b) => columns.step[b] - columns.step[a] || columns.group[a] - columns.group[b] || columns.number[a] - columns.number[b];
  return found.sort(by ? (a, b) => by(columns, b) - by(columns, a) || newest(a, b) : newest);
}

function filterForm(query) {
  const of = (name) => query.get(name) ?? "";
  const range = (name, title) => h("fieldset", { class: "range" }, h("legend", {}, title),
    h("input", { type: "number", name: `${name}_from`, step: "any", value: of(`${name}_from`), placeholder: "from", "aria-label": `${title} from` }),
    h("input", { type: "number", name: `${name}_to`, step: "any", value: of(`${name}_to`), placeholder: "to", "aria-label": `${title} to` }));
  const choice = (name, title, options) => h("label", { class: "field" }, title, " ", h("select", { name },
    options.map(([value, text]) => h("option", { value, selected: value === of(name) }, text))));
  return h("form", { class: "filters card", role: "search", "aria-label": "Which rollouts", onsubmit: (event) => event.preventDefault() },
    h("label", { class: "field wide" }, "Find ", h("input", { type: "search", name: "find", id: "search", value: of("find"), placeholder: "text of a prompt or completion", autocomplete: "off", spellcheck: "false" })),
    choice("order", "Order", Object.entries(ORDERS).map(([value, [text]]) => [value, text])),
    choice("judged", "Correct", [["", "any"], ["true", "right"], ["false", "wrong"]]),
    choice("finish", "Finish", [["", "any"], ...(of("finish") ? [[of("finish"), of("finish")]] : [])]),
    choice("trained", "Trained on", [["", "any"], ["true", "yes"], ["false", "no"]]),
    range("step", "Step"), range("length", "Tokens"),
    h("span", { class: "pair" }, choice("part", "Value of", [["", "the reward"], ...(of("part") ? [[of("part"), of("part")]] : [])]), range("worth", "Value")),
    of("prompt") ? h("label", { class: "field" }, "Prompt ", h("input", { type: "text", name: "prompt", value: of("prompt") })) : null,
    h("button", { type: "reset", class: "plain" }, "Clear"));
}

// Adds the choices that the rollouts themselves bring.
function addChoices(select, values) {
  const known = new Set([...select.options].map((option) => option.value));
  for (const value of values) if (!known.has(value) && value !== "") select.append(h("option", { value }, value));
}

async function rolloutsPage(query, page) {
  const run = query.get("run");
  const { about, heading } = await runHeading(page, run, "rollouts");
  page.title(`Rollouts of ${about.standing.recipe}`);
  const form = filterForm(query), told = h("p", { class: "lead", role: "status" }), list = h("div", {}), trouble = h("div", {});
  page.show(heading, form, told, trouble, list);
  const columns = emptyColumns(), texts = new Map();
  const state = { next: undefined, matches: null, searched: "", stopped: false, shown: ROWS_SHOWN };

  const draw = () => {
    const filters = readFilters(form);
    const found = chosen(columns, filters, state.matches);
    selection.run = run;
    selection.places = found.map((i) => placeKey(columns, i));
    told.textContent = toldOf(columns, found, state);
    const focused = document.activeElement?.closest?.("[data-place]")?.dataset.place;
    list.replaceChildren(rolloutTable(run, columns, found.slice(0, state.shown), texts, filters),
      found.length > state.shown ? h("button", { type: "button", class: "more", onclick: () => { state.shown += ROWS_SHOWN; draw(); } }, `${count(found.length - state.shown)} more`) : "");
    if (focused) list.querySelector(`[data-place="${focused}"] a.open`)?.focus({ preventScroll: true });
    fetchTexts(run, columns, found.slice(0, state.shown), texts, list);
  };
  const changed = () => {
    state.shown = ROWS_SHOWN;
    page.note(Object.fromEntries([...new FormData(form)].filter(([name, value]) => value !== "" || query.has(name))));
    const { find } = readFilters(form);
    if (find !== state.searched) searchTexts(run, find, state, draw);
    draw();
  };
  let waiting;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(changed, 150); });
  form.addEventListener("reset", () => setTimeout(changed));
  list.addEventListener("keydown", (event) => moveInList(event, list));

  const load = async (parameters) => {
    let next = null;
    do {
      const answer = await ask("rollouts", { run, ...parameters, before: next ?? undefined });
      appendColumns(columns, answer);
      next = answer.next;
      state.next = next;
      addChoices(form.elements.finish, new Set(columns.finish));
      addChoices(form.elements.part, Object.keys(columns.parts));
      trouble.replaceChildren(problemList([...(answer.problems ?? []), ...(answer.left_out ?? [])]) ?? "");
      draw();
    } while (next !== null && !state.stopped);
  };
  if (readFilters(form).find) searchTexts(run, readFilters(form).find, state, draw);
  load({}).catch((error) => trouble.replaceChildren(problemList([error.message])));
  let stopLive = () => {};
  if (!isExport() && about.standing.status === "being written") {
    stopLive = repeat(4, async () => {
      if (state.next !== null) return;
      const newest = columns.step.reduce((one, other) => Math.max(one, other), 0);
      const { rollout_steps: steps } = await ask("run", { run });
      if (steps.at(-1) > newest) await load({ after: newest });
    });
  }
  return () => { state.stopped = true; stopLive(); };
}

function toldOf(columns, found, state) {
  const rewards = found.map((i) => columns.reward[i]).filter((value) => value !== null);
  const mean = rewards.length ? `, mean reward ${number(rewards.reduce((sum, value) => sum + value, 0) / rewards.length)}` : "";
  const loading = state.next ? `, reading the steps before ${count(state.next)} …` : state.next === undefined ? ", reading …" : "";
  const searching = state.searching ? ", searching …" : "";
  return `${count(found.length)} of ${plural(columns.count, "rollout")}${mean}${loading}${searching}`;
}

// Asks for the rollouts with a text, step by step; a newer search ends an older one.
async function searchTexts(run, text, state, draw) {
  state.searched = text;
  state.matches = text ? new Set() : null;
  state.searching = Boolean(text);
  let next = null;
  try {
    while (text && !state.stopped) {
      const answer = await ask("search", { run, text, before: next ?? undefined });
      if (state.searched !== text) return;
      for (const place of answer.places) state.matches.add(place.join("-"));
      next = answer.next;
      if (next === null) break;
      draw();
    }
  } catch (error) {
    announce(error.message);
  }
  if (state.searched === text) { state.searching = false; draw(); }
}

function rolloutAddress(run, key) {
  const [step, group, number] = key.split("-");
  return address("rollout", { run, step, group, number });
}

function rolloutTable(run, columns, shown, texts, filters) {
  if (!shown.length) return h("p", { class: "lead" }, "No rollout is like that.");
  const parts = Object.keys(columns.parts).slice(0, 4);
  const rows = shown.map((i) => {
    const key = placeKey(columns, i);
    const prompt = h("td", { class: "excerpt" }), text = h("td", { class: "excerpt" });
    const row = h("tr", { "data-place": key },
      h("td", { class: "number" }, h("a", { href: rolloutAddress(run, key), class: "open", "aria-label": `open rollout ${columns.number[i]} of group ${columns.group[i]}, step ${columns.step[i]}` }, count(columns.step[i]))),
      prompt, text,
      h("td", { class: "number" }, h("b", {}, number(columns.reward[i])), columns.correct[i] === null ? "" : [" ", verdictMark({ correct: columns.correct[i] })]),
      parts.map((name) => h("td", { class: "number" }, number(columns.parts[name][i]))),
      h("td", { class: "number advantage" }, columns.kept[i] ? number(columns.advantage[i]) : h("span", { class: "quiet" }, "not trained")),
      h("td", { class: "number" }, count(columns.length[i])), h("td", {}, columns.finish[i] === "length" ? badge("note", "truncated") : h("span", { class: "quiet" }, columns.finish[i])));
    if (texts.has(key)) showExcerpt(row, texts.get(key), run, columns.prompt[i]);
    else prompt.append(h("span", { class: "quiet" }, columns.prompt[i]));
    return row;
  });
  const numeric = (name) => h("th", { scope: "col", class: "number" }, name);
  const sorted = filters.order === "advantage" ? "descending" : undefined;
  return h("div", { class: "table", role: "region", "aria-label": "Rollouts", tabindex: -1 }, h("table", { class: "rollouts" },
    h("thead", {}, h("tr", {}, numeric("Step"), h("th", { scope: "col" }, "Prompt"), h("th", { scope: "col" }, "Completion"), numeric("Reward"),
      parts.map(numeric), h("th", { scope: "col", class: "number", "aria-sort": sorted }, "|Advantage|"), numeric("Tokens"), h("th", { scope: "col" }, "Finish"))),
    h("tbody", {}, rows)));
}

function showExcerpt(row, excerpt, run, promptId) {
  const [, prompt, text] = row.children;
  if (excerpt.problem) { text.replaceChildren(h("span", { class: "trouble" }, excerpt.problem)); return; }
  prompt.replaceChildren(h("a", { class: "line", dir: "auto", title: "the history of this prompt", href: address("prompt", { run, id: promptId }) }, excerpt.prompt || promptId));
  text.replaceChildren(h("span", { class: "line", dir: "auto" }, excerpt.text || h("span", { class: "quiet" }, "empty")));
  if (excerpt.advantage) row.querySelector(".advantage").replaceChildren(h("span", { class: excerpt.advantage > 0 ? "up" : "down" }, signed(excerpt.advantage)));
}

// The texts of the rows on the page, a few at a time.
async function fetchTexts(run, columns, shown, texts, list) {
  const missing = shown.map((i) => [placeKey(columns, i), columns.prompt[i]]).filter(([key]) => !texts.has(key));
  for (let from = 0; from < missing.length; from += 10) {
    const part = missing.slice(from, from + 10);
    for (const [key] of part) texts.set(key, { prompt: "", text: "…" });
    try {
      const { excerpts } = await ask("excerpts", { run, places: part.map(([key]) => key).join(",") });
      for (const [key, promptId] of part) {
        texts.set(key, excerpts[key]);
        const row = list.querySelector(`[data-place="${key}"]`);
        if (row) showExcerpt(row, excerpts[key], run, promptId);
      }
    } catch (error) {
      for (const [key] of part) texts.delete(key);
      announce(error.message);
      return;
    }
  }
}

// Up and down between the rows; the focused link opens with Enter.
function moveInList(event, list) {
  const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  const links = [...list.querySelectorAll("a.open")], at = links.indexOf(document.activeElement);
  if (!by || at < 0) return;
  event.preventDefault();
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
}
