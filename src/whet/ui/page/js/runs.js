// The list of everything in the folder.
"use strict";

const STATUS = {
  finished: ["ok", "finished"], "being written": ["live", "training"], stopped: ["note", "stopped"],
  failed: ["critical", "failed"], damaged: ["critical", "damaged"],
};

function statusBadge(standing) {
  const [kind, text] = STATUS[standing.status] ?? ["note", standing.status];
  return badge(kind, text);
}

// Steps made, of how many.
function progressText(standing) {
  if (standing.status === "damaged") return "";
  const all = standing.steps;
  return all && all !== standing.step ? `${count(standing.step)} of ${count(all)}` : count(standing.step);
}

function headlineText(headline) {
  return headline ? headline.values.map((one) => measured(headline, one.value)).join(" → ") : "";
}

// A small picture of a share before and after, with its intervals.
function headlineBar(headline, width = 92) {
  if (!headline?.is_share) return null;
  const place = (share) => (6 + (width - 12) * Math.min(1, Math.max(0, share))).toFixed(1);
  const line = (kind, from, to) => svg("line", { class: kind, x1: place(from), x2: place(to), y1: 7, y2: 7 });
  const ends = headline.values;
  return svg("svg", { class: "minibar", viewBox: `0 0 ${width} 14`, width, height: 14, "aria-hidden": true }, line("track", 0, 1),
    ends.map((one, i) => [one.low === null ? null : line(i === ends.length - 1 ? "span after" : "span before", one.low, one.high),
      svg("circle", { class: i === ends.length - 1 ? "after" : "before", cx: place(one.value), cy: 7, r: 4 })]));
}

async function runsPage(query, page) {
  page.title("Runs");
  const search = h("input", { type: "search", id: "search", value: query.get("find") ?? "", placeholder: "name, recipe, status …",
    autocomplete: "off", spellcheck: "false" });
  const compare = h("a", { class: "button", href: "#compare", "aria-disabled": "true" }, "Compare");
  const list = h("div", {}), lead = h("p", { class: "lead" });
  page.show(
    h("div", { class: "heading" }, h("div", {}, h("h1", {}, "Runs"), lead),
      h("div", { class: "tools" }, h("label", { class: "field" }, "Find ", search), compare)),
    list);
  const chosen = new Set();
  let answer = await ask("runs");

  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = answer.entries.filter((entry) => words.every((word) => describe(entry).includes(word)));
    lead.replaceChildren(...pieces(`${plural(answer.entries.filter((entry) => entry.kind === "run").length, "run")} in `), h("code", {}, answer.folder));
    list.replaceChildren(problemList(answer.problems) ?? "", leftOut() ?? "", entriesTable(answer.entries, shown, chosen, drawCompare));
    drawCompare();
  };
  const drawCompare = () => {
    const names = [...chosen];
    compare.textContent = names.length ? `Compare ${plural(names.length, "run")}` : "Compare";
    compare.href = address("compare", { run: names });
    compare.setAttribute("aria-disabled", names.length ? "false" : "true");
  };
  search.addEventListener("input", () => { page.note({ find: search.value }); draw(); });
  draw();
  if (isExport()) return null;
  return repeat(4, async () => {
    const found = await ask("runs");
    if (JSON.stringify(found) === JSON.stringify(answer)) return;
    answer = found;
    if (!list.contains(document.activeElement)) draw();
  });
}

// What an export lacks.
function leftOut() {
  const found = isExport() ? EXPORT.contents.left_out : [];
  return found.length ? h("details", { class: "card block" }, h("summary", {}, `${plural(found.length, "thing")} left out of this export`), h("ul", {}, found.map((one) => h("li", {}, one)))) : null;
}

function describe(entry) {
  const standing = entry.standing ?? {};
  return `${entry.name} ${entry.kind} ${standing.status ?? ""} ${STATUS[standing.status]?.[1] ?? ""} ${standing.recipe ?? ""} ` +
    `${standing.kind ?? ""} ${standing.result ?? ""}`.toLowerCase();
}

function entriesTable(entries, shown, chosen, changed) {
  if (!entries.length) {
    return h("div", { class: "card blank" }, h("p", {}, "No runs here yet."), h("pre", {}, "whet train grpo-sorting"));
  }
  if (!shown.length) return h("p", { class: "lead" }, "Nothing has all these words.");
  const rows = [];
  const begun = (entry) => entry.standing?.started ?? entries.filter((one) => one.in === entry.name).map(begun).sort().at(-1) ?? "";
  const outer = shown.filter((one) => !one.in || !shown.some((other) => other.name === one.in));
  for (const entry of outer.sort((one, other) => (begun(one) < begun(other) ? 1 : -1))) {
    rows.push(entryRow(entries, entry, chosen, changed));
    for (const inner of shown.filter((one) => one.in && one.in === entry.name)) rows.push(entryRow(entries, inner, chosen, changed, entry.name));
  }
  return table(["", "Run", "Status", "Steps", "Result", "Started"], rows, { label: "Runs", numeric: [3] });
}

// Status, steps, result and start of runs that belong together.
function togetherCells(inner) {
  if (!inner.length) return ["", "", "", ""];
  const of = (status) => inner.filter((one) => one.standing.status === status).length;
  const worst = ["being written", "failed", "damaged", "stopped", "finished"].find(of);
  const starts = inner.map((one) => one.standing.started ?? "").filter(Boolean).sort();
  return [statusBadge({ status: worst }), "", h("span", { class: "quiet" }, of("finished") === inner.length ? plural(inner.length, "run") : `${of("finished")} of ${plural(inner.length, "run")} finished`),
    h("span", { class: "quiet" }, starts[0]?.slice(0, 16) ?? "")];
}

function entryRow(entries, entry, chosen, changed, above = "") {
  const shortName = above ? entry.name.slice(above.length + 1) : entry.name;
  if (entry.kind !== "run") {
    const title = h("span", { class: "name" }, link(address(entry.kind, { in: entry.name }), shortName), " ", badge("kind", entry.kind));
    return ["", title, ...togetherCells(entries.filter((one) => one.in === entry.name))];
  }
  const standing = entry.standing;
  const tick = h("input", { type: "checkbox", "aria-label": `compare ${entry.name}` });
  tick.checked = chosen.has(entry.name);
  tick.addEventListener("change", () => {
    if (tick.checked) chosen.add(entry.name); else chosen.delete(entry.name);
    changed();
  });
  const name = h("span", { class: above ? "name inner" : "name" }, link(address("run", { run: entry.name }), shortName));
  const trouble = standing.error || standing.problems[0];
  const result = trouble
    ? h("span", { class: "trouble" }, trouble)
    : h("span", { class: "result" }, headlineBar(standing.headline), h("span", {}, headlineText(standing.headline) || standing.result),
      standing.headline ? h("span", { class: "quiet" }, standing.headline.label.replace("held-out ", "")) : null);
  return [tick, name, statusBadge(standing), progressText(standing), result, h("span", { class: "quiet" }, standing.started?.slice(0, 16) ?? "")];
}
