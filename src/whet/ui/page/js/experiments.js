// Pipelines and comparisons: their runs, who is better, and the report; and surveys of data sets.
"use strict";

async function experimentPage(query, page) {
  const name = query.get("in");
  const found = await ask("experiment", { in: name });
  page.trail([name, address(found.kind, { in: name })]);
  page.title(found.recipe);
  const runs = h("div", {});
  const all = (shown) => address("compare", { run: shown.map((entry) => entry.name) });
  const draw = (answer) => runs.replaceChildren(
    answer.runs.length ? entriesOf(answer, name) : h("p", { class: "lead" }, "Its runs are not here."));
  page.show(
    h("div", { class: "heading" }, h("div", {}, h("h1", {}, found.recipe), h("div", { class: "facts" }, badge("kind", found.kind), h("span", {}, name), (found.comparison?.facts ?? []).map((fact) => h("span", {}, fact)))),
      found.runs.length > 1 ? h("div", { class: "tools" }, h("a", { class: "button", href: all(found.runs) }, "Compare all curves")) : null),
    problemList(found.problems), found.comparison ? verdictSection(found.comparison) : null,
    h("h2", {}, "Runs"), runs,
    found.config ? h("details", {}, h("summary", {}, "Recipe of the pipeline"), h("div", { class: "card block" }, h("pre", { tabindex: 0 }, found.config.trim()))) : null,
    found.page ? [h("h2", {}, "Report"), reportFrame(found.page.in, found.page.file)] : null);
  draw(found);
  if (isExport()) return null;
  return repeat(4, async () => { if (!runs.contains(document.activeElement)) draw(await ask("experiment", { in: name })); });
}

function entriesOf(answer, name) {
  const cells = answer.runs.map((entry) => entryRow(answer.runs, entry, new Set(), () => {}, name).slice(1));
  return table(["Run", "Status", "Steps", "Result", "Started"], cells, { label: "Runs", numeric: [2] });
}

function verdictSection(view) {
  const rows = view.entries.map((entry) => entry.cells.map((cell, i) => h("div", {}, i ? cell.main : h("b", {}, cell.main), cell.small.map((line) => h("div", { class: "quiet small" }, line)))));
  return h("section", { "aria-label": "Verdict" },
    h("div", { class: "card block verdict" }, view.verdict.map((sentence) => h("p", {}, sentence))),
    rows.length ? table(view.columns, rows, { label: "The methods", numeric: view.columns.map((_, i) => i).slice(1) }) : null,
    h("details", {}, h("summary", {}, "How it was measured"), h("ul", {}, [...view.notes, ...view.failures].map((line) => h("li", {}, line))), view.command ? h("pre", {}, view.command) : null));
}

async function surveyPage(query, page) {
  const found = await ask("survey", { in: query.get("in") });
  page.title(found.name);
  page.trail([found.name, address("survey", { in: found.name })]);
  page.show(h("h1", {}, found.name), reportFrame(found.page.in, found.page.file));
  return null;
}
