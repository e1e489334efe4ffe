// Only in an export: answers from its files, and those that a server would work out.
"use strict";

const ROLLED = new Map();  // run → place → rollout, of the files that were loaded

function exported(contents) {
  EXPORT.contents = contents;
}

function answered(key, answer) {
  EXPORT.arrived.set(key, answer);
}

function rolledOut(run, row) {
  if (!ROLLED.has(run)) ROLLED.set(run, new Map());
  ROLLED.get(run).set(`${row.step}-${row.group}-${row.number}`, row);
}

// Each file is a script that hands over what is in it: pages from file:// may not fetch.
function loadFile(file) {
  if (!EXPORT.waiting.has(file)) {
    EXPORT.waiting.set(file, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = file;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${file} is missing from the export`));
      document.head.append(script);
    }));
  }
  return EXPORT.waiting.get(file);
}

async function askExport(question, parameters) {
  const own = { rollout: exportedRollout, excerpts: exportedExcerpts, search: exportedSearch, history: exportedHistory }[question];
  if (own) return own(parameters);
  const key = questionKey(question, parameters);
  const file = EXPORT.contents.files[key];
  if (!file) {
    if (question === "curves" && parameters.after) return { cursor: parameters.after, starts_again: false, has_more: false, problems: [], curves: {} };
    throw new Error("this was left out of the export");
  }
  await loadFile(file);
  return EXPORT.arrived.get(key);
}

async function exportedRow(run, step, group, number) {
  const file = EXPORT.contents.rollouts[run]?.[step];
  if (!file) throw new Error(`the rollouts of step ${step} were left out of the export`);
  await loadFile(file);
  const row = ROLLED.get(run)?.get(`${step}-${group}-${number}`);
  if (!row) throw new Error(`there is no rollout ${number} of group ${group} at step ${step}`);
  return row;
}

// The list of a run's rollouts, as the page reads it.
async function exportedColumns(run) {
  const columns = emptyColumns();
  appendColumns(columns, await askExport("rollouts", { run }));
  return columns;
}

function indices(columns, wanted) {
  return Array.from({ length: columns.count }, (_, i) => i).filter(wanted);
}

async function exportedRollout({ run, step, group, number, row }) {
  const columns = await exportedColumns(run);
  const ofStep = indices(columns, (i) => columns.step[i] === Number(step));
  const place = row ? ofStep[Number(row)] : undefined;
  const [inGroup, inPlace] = place === undefined ? [Number(group), Number(number)] : [columns.group[place], columns.number[place]];
  const siblings = ofStep.filter((i) => columns.group[i] === inGroup).map((i) => ({
    step: columns.step[i], group: columns.group[i], number: columns.number[i], reward: columns.reward[i], length: columns.length[i], finish: columns.finish[i],
    kept: columns.kept[i], max_advantage: columns.advantage[i], parts: Object.fromEntries(Object.entries(columns.parts).map(([name, values]) => [name, values[i]])),
  }));
  return { ...(await exportedRow(run, step, inGroup, inPlace)), siblings };
}

async function exportedExcerpts({ run, places }) {
  const excerpts = {};
  for (const place of places.split(",")) {
    const { prompt, text, advantage } = await exportedRow(run, ...place.split("-"));
    excerpts[place] = { prompt: prompt.slice(0, 300), text: text.slice(0, 300), advantage };
  }
  return { excerpts };
}

async function exportedSearch({ run, text }) {
  const wanted = text.toLowerCase();
  await Promise.all(Object.values(EXPORT.contents.rollouts[run] ?? {}).map(loadFile));
  const found = [...(ROLLED.get(run) ?? new Map()).entries()].filter(([, row]) => `${row.prompt}\u0000${row.text}`.toLowerCase().includes(wanted));
  return { places: found.map(([place]) => place.split("-").map(Number)), next: null, problems: [] };
}

async function exportedHistory({ run, id }) {
  const columns = await exportedColumns(run);
  const kept = indices(columns, (i) => columns.prompt[i] === id);
  const of = (values) => kept.map((i) => values[i]);
  return {
    ...Object.fromEntries(FIELDS.map((name) => [name, of(columns[name])])), prompts: [id], prompt: kept.map(() => 0),
    finishes: of(columns.finish), finish: kept.map((_, i) => i), problems: [],
    parts: Object.fromEntries(Object.entries(columns.parts).map(([name, values]) => [name, of(values)])),
  };
}
