// Several runs: curves over each other, what differs in their recipes, the same held-out examples side by side.
"use strict";

async function comparePage(query, page) {
  const names = query.getAll("run");
  page.title(names.length ? `Compare ${plural(names.length, "run")}` : "Compare");
  page.trail(["Compare", address("compare", { run: names })]);
  if (!names.length) {
    page.show(h("h1", {}, "Compare runs"), h("p", { class: "lead" }, "Tick runs in the ", link("#runs", "list"), ", then press Compare."));
    return null;
  }
  const abouts = await Promise.all(names.map((run) => ask("run", { run })));
  const short = shortNames(names);
  const overview = h("section", {}), curves = h("section", { "aria-labelledby": "curves" }), recipes = h("section", {}), answers = h("section", {});
  page.show(h("h1", {}, `Compare ${plural(names.length, "run")}`), overview, curves, recipes, answers);
  overview.replaceChildren(table(["Run", "Status", "Steps", "Result", ""], abouts.map((about, i) => [
    h("span", { class: `key ${colourClass(i)}` }, link(address("run", { run: names[i] }), short[i])), statusBadge(about.standing),
    progressText(about.standing), h("span", { class: "result" }, headlineBar(about.standing.headline), headlineText(about.standing.headline) || about.standing.result),
    names.length > 1 ? link(address("compare", { run: names.filter((_, other) => other !== i) }), "leave out") : "",
  ]), { label: "Compared runs", numeric: [2] }));
  recipes.replaceChildren(h("h2", {}, "Recipes"), recipeDifferences(abouts, short));
  const [meanings, ...followed] = await Promise.all([meaningsOf(names), ...names.map((run) => followedCurves(run))]);
  const redraw = overlaid(curves, followed, short, meanings);
  await sideBySide(answers, names, short, abouts);
  const live = followed.filter((_, i) => abouts[i].standing.status === "being written");
  if (isExport() || !live.length) return null;
  return repeat(LIVE_SECONDS, async () => {
    const changed = await Promise.all(live.map((one) => one.readOn()));
    if (changed.some(Boolean)) redraw();
  });
}

// Names without what all of them begin with.
function shortNames(names) {
  if (names.length < 2) return names;
  const parts = names.map((name) => name.split("/"));
  let same = 0;
  while (parts.every((part) => part.length > same + 1 && part[same] === parts[0][same])) same += 1;
  return parts.map((part) => part.slice(same).join("/"));
}

// One chart for each metric that any run has, in the order of the panels.
function overlaid(section, followed, short, meanings) {
  const grid = h("div", { class: "charts" }), others = h("div", { class: "charts" });
  const more = h("details", { class: "others" }, h("summary", {}, "All other metrics"), others);
  section.replaceChildren(h("h2", { id: "curves" }, "Curves"), grid, more);
  const drawn = new Map();
  const placeAll = (into, panels) => into.replaceChildren(...panels.map((panel) => {
    const lines = followed.flatMap((one, i) => (one.curves[panel.metric] ? [panelLine(panel, one.curves, panel.metric, short[i], i)] : []));
    if (!drawn.has(panel.metric)) drawn.set(panel.metric, chart(explained({ ...panel, metrics: [[panel.metric, ""]] }, meanings), lines));
    return drawn.get(panel.metric).draw(lines);
  }));
  const draw = () => {
    const names = [...new Set(followed.flatMap((one) => Object.keys(one.curves)))];
    const { drawn: panels, others: rest } = panelsFor(names, (name, least) => followed.some((one) => exceeds(one.curves, name, least)));
    const single = (panel) => panel.metrics.map(([metric, label]) => ({ ...panel, metric,
      title: panel.metrics.length > 1 ? `${panel.title}: ${label}` : panel.title }));
    placeAll(grid, panels.flatMap(single));
    if (more.open) placeAll(others, rest.flatMap(single));
  };
  more.addEventListener("toggle", draw);
  draw();
  return draw;
}

function recipeDifferences(abouts, short) {
  const keys = [...new Set(abouts.flatMap((about) => Object.keys(about.keys)))];
  const shown = (about, key) => (key in about.keys ? String(about.keys[key] ?? "null") : "–");
  const different = keys.filter((key) => new Set(abouts.map((about) => shown(about, key))).size > 1);
  if (abouts.length < 2) return h("p", { class: "lead" }, "Choose a second run to see what differs.");
  if (!different.length) return h("p", { class: "lead" }, `All ${count(keys.length)} keys are equal.`);
  return h("div", {}, h("p", { class: "lead" }, `${count(different.length)} of ${count(keys.length)} keys differ.`),
    table(["Key", ...short], different.map((key) => [h("code", {}, key), ...abouts.map((about) => h("code", {}, shown(about, key)))]), { label: "Differences of recipes" }));
}

// The newest answers of every run to the examples that all of them answered.
async function sideBySide(section, names, short, abouts) {
  const heading = h("h2", {}, "Held-out answers");
  if (!abouts.every((about) => about.answer_steps.length)) {
    section.replaceChildren(heading, h("p", { class: "lead" }, "Not every run has stored answers."));
    return;
  }
  const evaluated = await Promise.all(names.map((run) => ask("held_out", { run })));
  const maps = evaluated.map((one) => new Map(one.answers.map((row) => [exampleKey(row), row])));
  const shared = [...maps[0].keys()].filter((key) => maps.every((map) => map.has(key) && map.get(key).prompt === maps[0].get(key).prompt));
  const differs = (key) => new Set(maps.map((map) => judged(map.get(key)))).size > 1;
  const only = h("input", { type: "checkbox", id: "differing" });
  const list = h("div", {});
  const draw = () => {
    const shown = only.checked ? shared.filter(differs) : shared;
    list.replaceChildren(h("p", { class: "lead", role: "status" }, shared.length ? `${count(shown.length)} of ${plural(shared.length, "example")} that all runs answered` : "The runs have no held-out example in common."),
      paged(shown, ANSWERS_SHOWN, (part) => table(["Prompt", ...short.map((name, i) => `${name}, step ${count(evaluated[i].step)}`)],
        part.map((key) => [promptCell(maps[0].get(key)), ...maps.map((map) => answerCell(map.get(key)))]), { label: "Answers side by side" })));
  };
  only.addEventListener("change", draw);
  section.replaceChildren(heading, names.length > 1 && shared.length ? h("label", { class: "filter" }, only, "judged differently") : "", list);
  draw();
}
