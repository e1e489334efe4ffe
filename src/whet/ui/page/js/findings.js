// What the doctor says of a run: findings with their evidence, likely causes, and the keys to change.
"use strict";

async function showFindings(section, run) {
  let found;
  try { found = await ask("doctor", { run }); } catch (error) {
    section.replaceChildren(h("h2", { id: "health" }, "Health"), problemList([error.message]));
    return;
  }
  const alarms = found.findings.filter((one) => one.level === "critical" || one.level === "warning");
  const notes = found.findings.filter((one) => one.level === "note");
  const fine = found.findings.filter((one) => one.level === "ok");
  const unjudged = h("ul", {}, found.unjudged.map((one) => h("li", {}, `${one.rule}: ${one.why}`)));
  const wasOpen = section.querySelector("details.fine")?.open ?? false;
  section.replaceChildren(...[
    h("h2", { id: "health" }, "Health"),
    alarms.length + notes.length
      ? h("ul", { class: "findings card" }, [...alarms, ...notes].map((one) => finding(one, run)))
      : h("p", { class: "lead" }, found.is_empty ? "Nothing to judge yet: no step is logged." : "No alarm: nothing that the doctor knows is wrong."),
    alarms.length && found.causes.length ? causes(found.causes) : null,
    h("details", { class: "fine", open: wasOpen },
      h("summary", {}, `${plural(fine.length, "check")} without a finding, ${count(found.unjudged.length)} not judged`),
      h("ul", { class: "findings card" }, fine.map((one) => finding(one, run))), found.unjudged.length ? unjudged : null),
  ].filter(Boolean));
}

function finding(one, run) {
  const when = one.step === null ? "" : one.until === null ? ` (since step ${count(one.step)})` : ` (steps ${count(one.step)} to ${count(one.until)})`;
  return h("li", {}, badge(one.level), h("div", {},
    one.sentence.charAt(0).toUpperCase() + one.sentence.slice(1), h("span", { class: "quiet" }, when),
    one.evidence.length ? h("ul", { class: "evidence" }, one.evidence.map((seen) => h("li", {}, evidence(seen, run)))) : null));
}

function evidence(seen, run) {
  if (seen.rollout !== null) {
    const [step, row] = seen.rollout;
    return [seen.text, " ", link(address("rollout", { run, step, row }), `row ${row} of step ${step}`)];
  }
  return seen.step === null ? seen.text : `${seen.text}, step ${count(seen.step)}`;
}

function causes(found) {
  return h("div", {}, h("h3", {}, "Likely causes, the likeliest first"),
    h("ol", { class: "card causes" }, found.slice(0, 3).map((cause) => h("li", {},
      `${cause.sentence.charAt(0).toUpperCase()}${cause.sentence.slice(1)}.`,
      cause.changes.map((change) => h("div", { class: "change" }, "try ", h("code", {}, change.argument), h("span", { class: "quiet" }, ` ${change.why}`)))))));
}
