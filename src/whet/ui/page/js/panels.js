// Which metrics share a chart, in what order; every other metric has a chart of its own below.
"use strict";

const NATS = "nats per token";
// `lines`: metric or pattern, label. A pattern ends in / and matches what begins so; it labels lines by the rest.
const PANELS = [
  { title: "Held-out accuracy", unit: "%, 95 % interval", scale: 100, floor: 0, ceiling: 100, plain: true, band: true,
    lines: [["eval/accuracy", "accuracy"], ["eval/pair_accuracy", "pairs"], ["eval/label_accuracy", "labels"],
      ["eval/outcome_accuracy", "outcomes"], ["eval/step_accuracy", "steps"], ["eval/token_accuracy", "tokens"],
      ["eval/pass@", "pass@"], ["eval/maj@", "maj@"]] },
  { title: "Held-out loss", unit: NATS, plain: true,
    lines: [["eval/loss", "held-out loss"], ["eval/bound", "bound"], ["eval/masked_loss", "at masked tokens"]] },
  { title: "Reward", unit: "mean per rollout", lines: [["reward/mean", "training"], ["eval/reward", "held-out"]] },
  { title: "Reward parts", unit: "before weights", several: true, lines: [["parts/", ""]] },
  { title: "Loss", unit: "", least: 1e-6, lines: [["loss", "loss"]] },
  { title: "Margin", unit: "of implicit rewards", lines: [["rewards/margin", "margin"]] },
  { title: "Log-probs of pairs", unit: "nats", lines: [["logprobs/chosen", "chosen"], ["logprobs/rejected", "rejected"]] },
  { title: "KL to the reference", unit: NATS, lines: [["kl", "KL"]] },
  { title: "Entropy", unit: NATS, floor: 0, lines: [["entropy", "entropy"]] },
  { title: "Length", unit: "tokens per completion", floor: 0, lines: [["length/mean", "training"], ["eval/length", "held-out"]] },
  { title: "Shares", unit: "%", scale: 100, floor: 0,
    lines: [["truncated", "truncated"], ["groups/zero_variance", "zero-variance groups"], ["clip_fraction", "clipped"]] },
  { title: "Gradient norm", unit: "before clipping", floor: 0, lines: [["grad_norm", "norm"]] },
  { title: "Importance ratio", unit: "", lines: [["ratio/max", "largest"], ["ratio/min", "smallest"]] },
  { title: "Learning rate", unit: "", floor: 0, plain: true, lines: [["lr", "learning rate"]] },
  { title: "Sampler against trainer", unit: "nats", log: true, lines: [["mismatch/max", "largest"], ["mismatch/mean", "mean"]] },
  { title: "Staleness", unit: "steps", floor: 0, lines: [["staleness/max", "largest"], ["staleness/mean", "mean"]] },
  { title: "Critic", unit: "explained variance", lines: [["critic/explained_variance", "critic"]] },
  { title: "Time per step", unit: "seconds", floor: 0, timing: true,
    lines: [["seconds/step", "whole step"], ["seconds/rollout", "rollout"], ["seconds/score", "score"],
      ["seconds/annotate", "annotate"], ["seconds/update", "update"], ["seconds/waiting", "waiting"]] },
  { title: "Speed", unit: "tokens per second", floor: 0, timing: true, lines: [["tokens_per_second", "speed"]] },
];
const MOST_LINES = 6;  // of a pattern

// Ends of an interval are the band of their metric, not curves.
function isInterval(name) {
  return /_(low|high)$/.test(name);
}

// The metrics of a panel that were logged: [metric, label].
function metricsOf(panel, names) {
  const found = [];
  for (const [wanted, label] of panel.lines) {
    if (/[/@]$/.test(wanted)) {
      const matching = names.filter((name) => name.startsWith(wanted) && !isInterval(name)).slice(0, MOST_LINES);
      found.push(...matching.map((name) => [name, label + name.slice(wanted.length)]));
    } else if (names.includes(wanted)) found.push([wanted, label]);
  }
  return panel.several && found.length < 2 ? [] : found;
}

// The panels with data, then the metrics that none of them shows. On-policy the surrogate is 0 by construction: a curve
// that never leaves `least` is rounding.
function panelsFor(names, hasMoreThan) {
  const drawn = PANELS.map((panel) => ({ ...panel, metrics: metricsOf(panel, names) }))
    .filter((panel) => panel.metrics.length && (!panel.least || panel.metrics.some(([name]) => hasMoreThan(name, panel.least))));
  const shown = new Set(drawn.flatMap((panel) => panel.metrics.map(([name]) => name)));
  const others = names.filter((name) => !shown.has(name) && !isInterval(name)).sort();
  return { drawn, others: others.map((name) => ({ title: name, unit: "", metrics: [[name, name]], other: true })) };
}

function exceeds(curves, name, least) {
  return curves[name]?.[1].some((value) => Math.abs(value) > least) ?? false;
}

function panelLine(panel, curves, metric, label, colour) {
  const [steps, values] = curves[metric];
  const [low, high] = panel.band ? [curves[`${metric}_low`], curves[`${metric}_high`]] : [];
  const band = low && high && low[0].length === steps.length ? { low: low[1], high: high[1] } : {};
  return { label, colour, steps, values, ...band };
}

// A button that tells what the metrics of a panel mean; the healthy range, if it has one metric with one.
function explained(panel, meanings) {
  const rows = [...new Set(panel.metrics.map(([metric]) => meanings.of[metric]).filter(Boolean))].map((name) => meanings.rows[name]);
  if (!rows.length) return panel;
  const box = h("div", { popover: "auto", role: "dialog", "aria-label": `${panel.title}: what it means` }, rows.map((row, i) => [
    h("h3", {}, row.label, " ", h("code", { class: "quiet" }, [...new Set(panel.metrics.map(([metric]) => metric).filter((metric) => meanings.rows[meanings.of[metric]] === row))].join(", "))),
    definitions([["formula", row.formula], ["healthy", row.healthy], ["rises", row.rises], ["falls", row.falls]].filter(([, text]) => text)),
    i < rows.length - 1 ? h("hr") : null]));
  const button = h("button", { type: "button", class: "explain", "aria-label": `What ${panel.title} means`, onclick: () => box.showPopover() }, "i");
  const healthy = rows.length === 1 && panel.metrics.length === 1 && rows[0].band.some((end) => end !== null) ? rows[0].band : undefined;
  return { ...panel, healthy, about: h("span", {}, button, box) };
}

async function meaningsOf(runs) {
  const found = { of: {}, rows: {} };
  for (const run of runs) {
    const answer = await ask("meanings", { run });
    Object.assign(found.of, answer.of);
    Object.assign(found.rows, answer.rows);
  }
  return found;
}

// Appends the points of an answer to curves: name → [steps, values].
function extendCurves(curves, answer) {
  if (answer.starts_again) for (const name of Object.keys(curves)) delete curves[name];
  for (const [name, [steps, values]] of Object.entries(answer.curves)) {
    const own = (curves[name] ??= [[], []]);
    own[0] = own[0].concat(steps);
    own[1] = own[1].concat(values);
  }
}

// The curves of a run, and a function that reads what was added; it says whether anything was.
async function followedCurves(run) {
  const logs = { metrics: { after: undefined, curves: {} }, timings: { after: undefined, curves: {} } };
  const followed = { curves: {}, problems: [] };
  followed.readOn = async () => {
    let changed = false;
    for (const [log, state] of Object.entries(logs)) {
      let answer;
      do {
        answer = await ask("curves", { run, log, after: state.after });
        extendCurves(state.curves, answer);
        state.after = answer.cursor || undefined;
        changed ||= answer.starts_again || Object.keys(answer.curves).length > 0;
        followed.problems.push(...answer.problems.filter((one) => !followed.problems.includes(one)));
      } while (answer.has_more);
    }
    followed.curves = { ...logs.metrics.curves, ...logs.timings.curves };
    return changed;
  };
  await followed.readOn();
  return followed;
}
