// The token microscope: a completion whose tokens are coloured by what was recorded of them.
"use strict";

const SHADES = 6;
const TOKENS_SHOWN = 3000;  // at once
// Known columns (whet.train.online.token_record): label, what it is, and how it is coloured: `one` side from 0, `both` sides of a middle.
const COLUMN_NAMES = {
  advantage: ["advantage", "the factor of the token's gradient", "both"],
  advantages: ["advantage", "the factor of the token's gradient", "both"],
  logprobs: ["log-prob", "as it was sampled: the darker, the less likely", "one", -3],
  old_logprobs: ["log-prob, before the update", "under the policy at the start of the step", "one", -3],
  reference_logprobs: ["log-prob, reference", "under the reference of the KL penalty", "one", -3],
  entropies: ["entropy", "of the next-token distribution, in nats", "one"],
  ratios: ["ratio", "policy over the policy before the step, when an update last read it: 1 is unchanged", "both", undefined, 1],
  kl: ["KL to the reference", "log-prob of the policy − log-prob of the reference, in nats", "both"],
  mismatch: ["trainer − sampler", "log-prob of the trainer − log-prob of the sampler, in nats", "both"],
  values: ["value", "what the critic expected from here on", "both"],
  token_rewards: ["token reward", "paid at this token", "both"],
  clipped: ["clipped", "whether the clip took its gradient away", "flag"],
  versions: ["weights", "version of the weights that sampled it", "one"],
};
const AGREE = 1e-4;  // nats: sampler and trainer differ by rounding alone

function columnAbout(name) {
  const [label, about, kind = "both", end, middle = 0] = COLUMN_NAMES[name] ?? [name.replaceAll("_", " "), "", "both"];
  return { name, label, about, kind, end, middle };
}

// The columns that have any number, and those that follow from others, in the order above. Where the trainer read a token
// only after its first update, the sampler's log-prob stands for the policy before the update.
function withDerived(columns) {
  const found = Object.fromEntries(Object.entries(columns).filter(([, values]) => values.some((value) => value !== null)));
  const { old_logprobs: old, reference_logprobs: reference, logprobs: sampled } = found;
  const minus = (one, other) => one.map((value, i) => (value === null || other[i] === null ? null : value - other[i]));
  const before = old && sampled ? old.map((value, i) => value ?? sampled[i]) : old ?? sampled;
  if (before && reference) found.kl = minus(before, reference);
  if (old && sampled && minus(old, sampled).some((value) => Math.abs(value) > AGREE)) found.mismatch = minus(old, sampled);
  const known = Object.keys(COLUMN_NAMES).filter((name) => name in found);
  return Object.fromEntries([...new Set([...known, ...Object.keys(found)])].map((name) => [name, found[name]]));
}

// The text of a token where its blanks are to be seen.
function spelled(piece) {
  return JSON.stringify(piece).slice(1, -1).replaceAll(" ", "␣");
}

// From a value to a class: q1 … of one side, p1 … above and n1 … below the middle.
function shader(about, values) {
  const sizes = values.filter((value) => value !== null).map((value) => Math.abs(value - about.middle)).sort((a, b) => a - b);
  const end = about.end === undefined ? sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes.at(-1) || 1 : Math.abs(about.end);
  const shade = (value) => {
    if (value === null || value === undefined) return "";
    if (about.kind === "flag") return value ? "flagged" : "";
    const level = Math.round(SHADES * Math.min(1, Math.abs(value - about.middle) / end));
    if (!level) return "";
    return about.kind === "one" ? `q${level}` : value > about.middle ? `p${level}` : `n${level}`;
  };
  return { shade, end };
}

async function rolloutPage(query, page) {
  const run = query.get("run");
  const place = Object.fromEntries(["step", "group", "number", "row"].map((name) => [name, query.get(name)]));
  page.trail([run, address("run", { run })], ["Rollouts", address("rollouts", { run })], [`step ${place.step}`, address("rollouts", { run, step_from: place.step, step_to: place.step })]);
  const row = await ask("rollout", { run, ...place });
  page.title(`Rollout ${row.number} of group ${row.group}, step ${row.step}`);
  const columns = withDerived(row.columns);
  const details = h("div", { class: "card details", "aria-live": "polite" }), strip = h("div", {});
  const tokens = tokenView(row, columns, details, strip);
  page.show(
    h("div", { class: "heading" }, h("div", {}, h("h1", {}, `Rollout ${row.number} of group ${row.group}, step ${count(row.step)}`), rolloutFacts(row)), neighbours(run, row)),
    h("section", { class: "card block", "aria-label": "Prompt" }, h("div", { class: "eyebrow" }, "prompt ", h("code", {}, row.id), " ", link(address("prompt", { run, id: row.id }), "its history")), said(row.prompt, 4000)),
    problemList(row.tokens_left_out ? [`${count(row.tokens_left_out)} more tokens are not shown`] : []),
    h("div", { class: "microscope" }, h("section", { class: "card block", "aria-label": "Completion" }, tokens.chooser, tokens.legend, tokens.node, strip), details),
    h("h2", {}, "Its group"), groupTable(run, row));
  tokens.start();
  return null;
}

function rolloutFacts(row) {
  const parts = Object.entries(row.parts).map(([name, value]) => h("span", {}, `${name} `, h("b", {}, number(value))));
  return h("div", { class: "facts" }, h("span", {}, "reward ", h("b", {}, number(row.reward))), parts,
    h("span", {}, "advantage ", h("b", { class: row.advantage > 0 ? "up" : row.advantage < 0 ? "down" : undefined }, row.trained ? signed(row.advantage) : "not trained on")),
    h("span", {}, plural(row.ids.length + row.tokens_left_out, "token")), row.finish === "length" ? badge("note", "truncated") : h("span", {}, `finish ${row.finish}`),
    row.version === null ? null : h("span", {}, `sampled with weights ${row.version}`),
    Object.entries(row.remarks).map(([name, value]) => h("span", {}, `${name} ${value}`)));
}

// The rollouts before and after this one in the list it was opened from.
function neighbours(run, row) {
  const key = `${row.step}-${row.group}-${row.number}`;
  const places = selection.run === run && selection.places.includes(key) ? selection.places : row.siblings.map((one) => `${one.step}-${one.group}-${one.number}`);
  const at = places.indexOf(key);
  const to = (place, id, text) => (place === undefined ? null : h("a", { class: "button", id, href: rolloutAddress(run, place) }, text));
  return h("nav", { class: "tools", "aria-label": "Other rollouts" }, to(places[at - 1], "previous", "← Previous"),
    h("span", { class: "quiet small" }, `${count(at + 1)} of ${count(places.length)}`), to(places[at + 1], "next", "Next →"));
}

// Chooser of the colour, legend, and the tokens as a list that arrow keys move through.
function tokenView(row, columns, details, strip) {
  const names = Object.keys(columns);
  const node = h("div", { class: "tokens text", role: "listbox", tabindex: 0, "aria-label": "Tokens of the completion: arrow keys move, the details follow", dir: "auto" });
  const legend = h("div", { class: "scale" });
  const stored = storedChoice("colour", "advantage");
  const state = { at: -1, pinned: false, shown: TOKENS_SHOWN, name: names.includes(stored) ? stored : names.find((one) => columns[one].some((value) => value !== columns[one][0])) ?? names[0] };
  const total = row.ids.length, answers = observations(row);

  const paint = () => {
    const values = columns[state.name] ?? [], about = columnAbout(state.name ?? "");
    const { shade, end } = shader(about, values);
    [...node.querySelectorAll(".token")].forEach((token, i) => { token.className = `token ${shade(values[i])}${columns.clipped?.[i] ? " clipped" : ""}${row.pieces?.[i] === "" ? " end" : ""}${i === state.at ? " chosen" : ""}`; });
    legend.replaceChildren(...(state.name ? legendOf(about, end) : [h("span", { class: "quiet" }, "The row holds no numbers of single tokens.")]));
    if (values.some((value) => value !== values[0])) {
      strip.replaceChildren(chart({ title: about.label, unit: "by token", plain: true, wide: true }, [{ label: about.label, colour: 0, steps: values.map((_, i) => i).filter((i) => values[i] !== null), values: values.filter((value) => value !== null).map(Number) }]).node);
    } else strip.replaceChildren();
  };
  const select = (i) => {
    node.querySelector(".chosen")?.classList.remove("chosen");
    state.at = i;
    const token = node.querySelector(`[data-i="${i}"]`);
    token?.classList.add("chosen");
    if (token) node.setAttribute("aria-activedescendant", token.id);
    node.querySelectorAll("[aria-selected]").forEach((one) => one.removeAttribute("aria-selected"));
    token?.setAttribute("aria-selected", "true");
    tokenDetails(details, row, columns, i, state.name);
  };
  const draw = () => {
    const shown = Math.min(total, state.shown), rest = total - shown;
    node.replaceChildren(...Array.from({ length: shown }, (_, i) => [tokenNode(row, i), ...(answers.get(i + 1) ?? [])]).flat(),
      ...(rest > 0 ? [h("button", { type: "button", class: "more", onclick: () => { state.shown += TOKENS_SHOWN; draw(); } }, `… ${count(rest)} more tokens`)] : []));
    if (!total) node.append(h("span", { class: "empty" }, "empty"));
    paint();
  };
  const chooser = h("fieldset", { class: "chooser" }, h("legend", {}, "Colour by"), names.map((name) => {
    const input = h("input", { type: "radio", name: "colour", value: name, checked: name === state.name });
    input.addEventListener("change", () => { state.name = name; storeChoice("colour", name); paint(); if (state.at >= 0) select(state.at); });
    return h("label", { class: "chip", title: columnAbout(name).about }, input, h("span", {}, columnAbout(name).label));
  }));
  node.addEventListener("pointerover", (event) => { const token = event.target.closest(".token"); if (token && !state.pinned) select(Number(token.dataset.i)); });
  node.addEventListener("click", (event) => { const token = event.target.closest(".token"); if (token) { state.pinned = state.at !== Number(token.dataset.i) || !state.pinned; select(Number(token.dataset.i)); } });
  node.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: state.at + 1, ArrowLeft: state.at - 1, Home: 0, End: total - 1, PageDown: state.at + 25, PageUp: state.at - 25 };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const to = Math.min(Math.min(total, state.shown) - 1, Math.max(0, moves[event.key]));
    select(to);
    node.querySelector(`[data-i="${to}"]`)?.scrollIntoView({ block: "nearest" });
  });
  return { node, chooser, legend, start: () => { draw(); if (total) select(0); } };
}

// What the environment answered, by the number of tokens that were sampled before.
function observations(row) {
  const found = new Map();
  let sampled = 0;
  for (const turn of row.turns ?? []) {
    sampled += turn.tokens;
    const answer = h("span", { class: "observed", title: `the environment: reward ${number(turn.reward)}` }, turn.observation.replaceAll("\n", "⏎\n"));
    if (turn.observation !== "") found.set(sampled, [...(found.get(sampled) ?? []), answer]);
  }
  return found;
}

function tokenNode(row, i) {
  const piece = row.pieces ? row.pieces[i] : `⟨${row.ids[i]}⟩`;
  return h("span", { class: "token", role: "option", id: `token-${i}`, "data-i": i }, piece === "" ? "end" : piece.length > 300 ? `${piece.slice(0, 300)}…` : piece.replaceAll("\n", "⏎\n"));
}

function legendOf(about, end) {
  const name = h("span", {}, h("b", {}, about.label), about.about ? h("span", { class: "quiet" }, ` · ${about.about}`) : null);
  if (about.kind === "flag") return [name, h("span", { class: "token flagged" }, "clipped")];
  const swatches = (classes) => classes.map((one) => h("span", { class: `swatch ${one}` }));
  const levels = Array.from({ length: SHADES }, (_, i) => i + 1);
  if (about.kind === "one") return [name, h("span", { class: "ramp" }, "0", swatches(levels.map((level) => `q${level}`)), number(about.end ?? end))];
  return [name, h("span", { class: "ramp" }, number(about.middle - end), swatches([...levels.map((level) => `n${level}`).reverse(), "", ...levels.map((level) => `p${level}`)]), about.middle ? number(about.middle + end) : signed(end))];
}

// Everything that is known of one token.
function tokenDetails(details, row, columns, i, current) {
  const piece = row.pieces?.[i];
  const values = Object.keys(columns).map((name) => {
    const value = columns[name][i], about = columnAbout(name);
    const text = typeof value === "boolean" ? (value ? "yes" : "no") : about.kind === "both" && !about.middle ? signed(value) : number(value);
    const chance = name.endsWith("logprobs") && value !== null ? h("span", { class: "quiet" }, ` ${percent(Math.exp(Math.min(0, value)))}`) : null;
    return [h("span", { class: name === current ? "current" : undefined }, about.label), [text, chance]];
  });
  const others = row.alternatives?.[i] ?? [];
  details.replaceChildren(
    h("div", { class: "eyebrow" }, `token ${count(i + 1)} of ${count(row.ids.length)}`),
    h("div", { class: "piece", dir: "auto" }, piece === undefined ? `id ${row.ids[i]}` : piece === "" ? "end of the completion" : spelled(piece)),
    definitions([["id", String(row.ids[i])], ...values]),
    ...(others.length ? [h("div", {}, h("h3", {}, "Instead"), h("ol", { class: "instead" }, others.map(([text, logprob]) => {
      const share = Math.exp(Math.min(0, logprob)), bar = h("span", { class: "share", "aria-hidden": true });
      bar.style.width = `${(100 * share).toFixed(1)}%`;
      return h("li", { class: text === piece ? "taken" : undefined }, h("code", {}, text === "" ? "end" : spelled(text)), h("span", { class: "quiet" }, percent(share)), bar);
    })))] : []));
}

function groupTable(run, row) {
  const parts = [...new Set(row.siblings.flatMap((one) => Object.keys(one.parts)))].slice(0, 5);
  const rows = row.siblings.map((one) => {
    const key = `${one.step}-${one.group}-${one.number}`;
    const text = h("span", { class: "line", dir: "auto", "data-text": key });
    const name = one.number === row.number ? h("b", { "aria-current": "true" }, `${one.number}`) : link(rolloutAddress(run, key), `${one.number}`);
    return [name, text, h("b", {}, number(one.reward)), ...parts.map((part) => number(one.parts[part])), h("span", { "data-advantage": key }, one.kept ? number(one.max_advantage) : "not trained"), count(one.length), one.finish];
  });
  const node = table(["Rollout", "Completion", "Reward", ...parts, "Advantage", "Tokens", "Finish"], rows, { label: "The rollouts of the group", numeric: [0, 2, ...parts.map((_, i) => 3 + i), 3 + parts.length, 4 + parts.length] });
  const places = row.siblings.map((one) => `${one.step}-${one.group}-${one.number}`).slice(0, 60);
  ask("excerpts", { run, places: places.join(",") }).then(({ excerpts }) => {
    for (const [key, excerpt] of Object.entries(excerpts)) {
      node.querySelector(`[data-text="${key}"]`)?.replaceChildren(...pieces(excerpt.problem ?? excerpt.text));
      const advantage = node.querySelector(`[data-advantage="${key}"]`);
      if (advantage && excerpt.advantage) advantage.replaceChildren(h("span", { class: excerpt.advantage > 0 ? "up" : "down" }, signed(excerpt.advantage)));
    }
  }).catch((error) => announce(error.message));
  return node;
}

// A prompt over the steps: the rewards of its rollouts, and what they said.
async function promptPage(query, page) {
  const run = query.get("run"), id = query.get("id");
  page.trail([run, address("run", { run })], ["Rollouts", address("rollouts", { run })]);
  page.title(`Prompt ${id}`);
  const columns = emptyColumns();
  appendColumns(columns, await ask("history", { run, id }));
  const order = chosen(columns, readFilters(h("form", {})), null).reverse();
  selection.run = run;
  selection.places = order.map((i) => placeKey(columns, i));
  const steps = [...new Set(order.map((i) => columns.step[i]))];
  const ofStep = (step) => order.filter((i) => columns.step[i] === step && columns.reward[i] !== null).map((i) => columns.reward[i]);
  const drawn = steps.filter((step) => ofStep(step).length);
  const over = (combine) => drawn.map((step) => combine(ofStep(step)));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const list = h("div", {}), texts = new Map();
  const lines = drawn.length ? [{ label: "mean reward", colour: 0, steps: drawn, values: over(mean), low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)) }] : [];
  page.show(h("h1", {}, "Prompt ", h("code", {}, id)),
    h("p", { class: "lead" }, order.length ? `${plural(order.length, "rollout")} in ${plural(steps.length, "step")}; the band is from the lowest to the highest reward.` : "No stored rollout is of this prompt."),
    lines.length ? h("div", { class: "single" }, chart({ title: "Reward", unit: "of its rollouts", plain: true, wide: true }, lines).node) : null, list);
  const shown = order.slice(0, 400);
  list.replaceChildren(rolloutTable(run, columns, shown, texts, { order: "step" }));
  list.addEventListener("keydown", (event) => moveInList(event, list));
  fetchTexts(run, columns, shown, texts, list);
  return null;
}
