// One run: its result, what the doctor says, its curves.
"use strict";

const RUN_VIEWS = [["run", "Overview"], ["rollouts", "Rollouts"], ["held_out", "Held-out answers"], ["recipe", "Recipe"], ["report", "Report"]];
const LIVE_SECONDS = 1.5;  // between two looks at the log of a run that trains
const DIAGNOSIS_SECONDS = 20;

// The heading that all views of a run share. Returns the answer about the run.
async function runHeading(page, run, current) {
  const about = await ask("run", { run });
  page.trail([run, address("run", { run })]);
  const available = { run: true, rollouts: about.rollout_steps.length > 0, held_out: about.answer_steps.length > 0,
    recipe: about.config !== "", report: Boolean(about.files.report || about.files.analysis) };
  const tabs = h("nav", { class: "tabs", "aria-label": "Views of this run" },
    RUN_VIEWS.filter(([view]) => available[view]).map(([view, title]) =>
      h("a", { href: address(view, { run }), "aria-current": view === current ? "page" : undefined }, title)));
  const facts = h("div", { class: "facts" });
  const heading = h("div", { class: "run-heading" }, h("h1", {}, about.standing.recipe || run), facts, tabs);
  const draw = (standing) => facts.replaceChildren(statusBadge(standing), ...factsOf(about, standing).map((fact) => h("span", {}, fact)));
  draw(about.standing);
  return { about, heading, draw };
}

function factsOf(about, standing) {
  const steps = standing.steps && standing.steps !== standing.step
    ? `step ${count(standing.step)} of ${count(standing.steps)}` : plural(standing.step, "step");
  return [about.name === standing.recipe ? "" : about.name, standing.kind, steps, standing.started ? `started ${standing.started.slice(0, 16)}` : "",
    about.seconds ? duration(about.seconds) : ""].filter(Boolean);
}

async function runPage(query, page) {
  const run = query.get("run");
  const { about, heading, draw: drawFacts } = await runHeading(page, run, "run");
  page.title(about.standing.recipe || run);
  const top = h("div", {}), findings = h("section", { "aria-labelledby": "health" }), charts = h("section", { "aria-labelledby": "curves" });
  page.show(heading, top, findings, charts);
  const drawTop = (standing) => top.replaceChildren(...[
    problemList(standing.problems),
    standing.error ? h("div", { class: "problem" }, h("strong", {}, "The run failed: "), standing.error) : null,
    standing.headline ? headlineCard(standing.headline) : null,
  ].filter(Boolean));
  drawTop(about.standing);

  const [followed, meanings] = await Promise.all([followedCurves(run), meaningsOf([run])]);
  const wall = chartWall(charts, followed, meanings);
  showFindings(findings, run);
  if (isExport() || about.standing.status !== "being written") return null;
  const stops = [];
  stops.push(repeat(LIVE_SECONDS, async () => {
    if (await followed.readOn()) wall.draw();
    const { standing } = await ask("run", { run });
    drawFacts(standing);
    drawTop(standing);
    if (standing.status !== "being written") {
      announce(`the run is ${standing.status}`);
      showFindings(findings, run);
      stops.forEach((stop) => stop());
    }
  }));
  stops.push(repeat(DIAGNOSIS_SECONDS, () => showFindings(findings, run)));
  return () => stops.forEach((stop) => stop());
}

function headlineCard(headline) {
  const values = headline.values.map((one, i) => [
    i > 0 ? h("span", { class: "arrow", "aria-label": "to" }, "→") : null,
    h("span", { class: i < headline.values.length - 1 ? "from" : undefined }, measured(headline, one.value)),
  ]);
  const last = headline.values.at(-1);
  const interval = (one) => (one.low === null || one.high === null ? "" : `${measured(headline, one.low)} to ${measured(headline, one.high)}`);
  const notes = [interval(last) ? `95 % interval: ${headline.values.map(interval).filter(Boolean).join(" and ")}` : "", headline.size,
    headline.is_higher_better ? "" : "lower is better"].filter(Boolean);
  return h("div", { class: "card headline" },
    h("div", { class: "eyebrow" }, headline.label.charAt(0).toUpperCase() + headline.label.slice(1)),
    h("div", { class: "figure" }, values), headlineBar(headline, 520), h("div", { class: "eyebrow" }, notes.join(", ")));
}

// All charts of a run; `draw` draws them anew from the curves that were read, and adds those of new metrics.
function chartWall(section, followed, meanings) {
  const grid = h("div", { class: "charts" }), others = h("div", { class: "charts" });
  const find = h("input", { type: "search", placeholder: "kl, length …", autocomplete: "off", spellcheck: "false" });
  const more = h("details", { class: "others" }, h("summary", {}, "All other metrics"), h("label", { class: "field" }, "Find ", find), others);
  const problems = h("div", {});
  section.replaceChildren(h("h2", { id: "curves" }, "Curves"),
    h("p", { class: "lead" }, "Faint lines are single steps, strong lines their moving mean. Point at a chart, or focus it and use the arrow keys."),
    problems, grid, more);
  const drawn = new Map();
  const draw = () => {
    const { drawn: panels, others: rest } = panelsFor(Object.keys(followed.curves), (name, least) => exceeds(followed.curves, name, least));
    place(grid, panels, followed.curves, drawn, meanings);
    more.hidden = !rest.length;
    if (more.open) place(others, rest.filter((panel) => panel.title.includes(find.value.trim())), followed.curves, drawn, meanings);
    problems.replaceChildren(problemList(followed.problems) ?? "");
    if (!panels.length && !rest.length) grid.replaceChildren(h("p", { class: "lead" }, "Nothing is logged yet."));
  };
  more.addEventListener("toggle", draw);
  find.addEventListener("input", draw);
  draw();
  return { draw };
}

function place(grid, panels, curves, drawn, meanings) {
  const wanted = panels.map((panel) => {
    const lines = panel.metrics.map(([metric, label], colour) => panelLine(panel, curves, metric, label, colour));
    const known = drawn.get(panel.title);
    if (known) return known.draw(lines);
    const made = chart(explained(panel, meanings), lines);
    drawn.set(panel.title, made);
    return made.node;
  });
  if (wanted.length !== grid.children.length || wanted.some((node, i) => grid.children[i] !== node)) grid.replaceChildren(...wanted);
}

async function recipePage(query, page) {
  const run = query.get("run");
  const { about, heading } = await runHeading(page, run, "recipe");
  page.title(`Recipe of ${about.standing.recipe}`);
  const setup = Object.entries(about.setup).filter(([, values]) => values && typeof values === "object");
  page.show(heading, h("div", { class: "columns" },
    h("div", { class: "card" }, h("h2", {}, "Recipe"), h("p", { class: "lead" }, "With all defaults, as the run read it."), h("pre", { tabindex: 0 }, about.config.trim())),
    h("div", { class: "stack" },
      h("div", { class: "card" }, h("h2", {}, "Directory"), h("pre", {}, about.path)),
      setup.map(([name, values]) => h("div", { class: "card" }, h("h2", {}, name.charAt(0).toUpperCase() + name.slice(1)),
        definitions(Object.entries(values).map(([key, value]) => [key, String(value)])))))));
  return null;
}

async function reportPage(query, page) {
  const run = query.get("run");
  const { about, heading } = await runHeading(page, run, "report");
  page.title(`Report of ${about.standing.recipe}`);
  page.show(heading, embedded(about, run));
  return null;
}

// The files that whet report wrote, in frames where nothing runs.
function embedded(about, run) {
  return h("div", {},
    about.files.analysis ? h("figure", { class: "picture" }, h("img", { src: fileAddress(run, about.files.analysis), alt: "The reward model: calibration and margins on held-out rows" })) : null,
    about.files.report ? reportFrame(run, about.files.report) : null);
}

function fileAddress(directory, file) {
  return isExport() ? EXPORT.contents.copied[`${directory}/${file}`] : `file?${new URLSearchParams({ in: directory, file })}`;
}

function reportFrame(directory, file) {
  const from = fileAddress(directory, file);
  if (!from) return problemList(["the report was left out of the export"]);
  return h("div", {}, h("p", { class: "lead" }, "As whet wrote it, in a frame without scripts. ", isExport() ? null : link(from, "Open it alone")),
    h("iframe", { class: "report", title: `${file} of ${directory}`, sandbox: "", src: from }));
}
