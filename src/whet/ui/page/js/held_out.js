// Answers to held-out prompts at two evaluations, side by side.
"use strict";

const ANSWERS_SHOWN = 60;  // at once

function exampleKey(row) {
  return `${row.set ?? ""}\u0001${row.id}\u0001${row.sample ?? 0}`;
}

// Whether an answer is correct or, without a reference answer, its reward.
function judged(row) {
  return row.correct ?? row.reward ?? null;
}

function verdictMark(row) {
  if (row.correct === true) return h("span", { class: "mark right", role: "img", "aria-label": "right" }, "✓");
  if (row.correct === false) return h("span", { class: "mark wrong", role: "img", "aria-label": "wrong" }, "✗");
  return null;
}

function answerCell(row) {
  if (!row) return h("span", { class: "quiet" }, "not answered");
  const details = [row.reward === undefined ? "" : `reward ${number(row.reward)}`, row.tokens === undefined ? "" : plural(row.tokens, "token"),
    row.finish === "length" ? "truncated" : ""].filter(Boolean).join(", ");
  return h("div", { class: "answer" }, verdictMark(row), h("div", {}, said(row.text, 2000), h("div", { class: "quiet small" }, details)));
}

function promptCell(row) {
  return h("div", {}, said(row.prompt, 2000), row.answer ? h("div", { class: "quiet small" }, "expected ", h("code", {}, row.answer)) : null);
}

async function heldOutPage(query, page) {
  const run = query.get("run");
  const { about, heading } = await runHeading(page, run, "held_out");
  page.title(`Held-out answers of ${about.standing.recipe}`);
  const steps = about.answer_steps;
  const pick = (id, label, value) => h("label", { class: "field" }, label, h("select", { id },
    steps.map((step) => h("option", { value: step, selected: step === value }, `step ${count(step)}`))));
  const first = Number(query.get("from") ?? steps[0]), last = Number(query.get("to") ?? steps.at(-1));
  const only = h("select", { id: "only" }, [["", "all answers"], ["right", "became right"], ["wrong", "became wrong"], ["changed", "changed"], ["false", "wrong at the end"]]
    .map(([value, title]) => h("option", { value, selected: value === (query.get("only") ?? "") }, title)));
  const find = h("input", { type: "search", id: "search", value: query.get("find") ?? "", placeholder: "in prompts and answers" });
  const tools = h("div", { class: "tools" }, pick("from", "Before ", first), pick("to", "After ", last), h("label", { class: "field" }, "Show ", only),
    h("label", { class: "field" }, "Find ", find));
  const results = h("div", {});
  page.show(heading, tools, results);
  const read = new Map();
  const answersOf = async (step) => {
    if (!read.has(step)) read.set(step, (await ask("held_out", { run, step })).answers);
    return read.get(step);
  };
  const draw = async () => {
    const [from, to] = [Number(tools.querySelector("#from").value), Number(tools.querySelector("#to").value)];
    page.note({ from, to, only: only.value, find: find.value });
    const before = new Map((await answersOf(from)).map((row) => [exampleKey(row), row]));
    const pairs = (await answersOf(to)).map((row) => [before.get(exampleKey(row)), row]);
    const shown = pairs.filter(([one, other]) => isWanted(only.value, one, other) && hasText([one, other], find.value));
    results.replaceChildren(h("p", { class: "lead", role: "status" }, `${plural(shown.length, "answer")} of ${count(pairs.length)}`),
      paged(shown, ANSWERS_SHOWN, (part) => table(["Prompt", `Step ${count(from)}`, `Step ${count(to)}`],
        part.map(([one, other]) => [promptCell(other), answerCell(one), answerCell(other)]), { label: "Answers" })));
  };
  tools.addEventListener("change", draw);
  find.addEventListener("input", draw);
  await draw();
  return null;
}

function isWanted(wanted, before, after) {
  if (!wanted) return true;
  if (wanted === "false") return after.correct === false;
  if (!before) return false;
  const [one, other] = [judged(before), judged(after)];
  if (wanted === "changed") return one !== other;
  return wanted === "right" ? Number(other) > Number(one) : Number(other) < Number(one);
}

function hasText(rows, wanted) {
  const low = wanted.toLowerCase();
  return !low || rows.some((row) => row && `${row.prompt}\n${row.text}\n${row.answer ?? ""}`.toLowerCase().includes(low));
}

// The first rows, and a button for more of them.
function paged(rows, size, draw) {
  const node = h("div", {});
  let shown = size;
  const redraw = () => {
    const rest = rows.length - shown;
    const more = () => { shown += size; redraw(); };
    node.replaceChildren(draw(rows.slice(0, shown)), rest > 0 ? h("button", { type: "button", class: "more", onclick: more }, `${count(rest)} more`) : "");
  };
  if (rows.length) redraw();
  return node;
}
