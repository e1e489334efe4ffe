// Answers to questions: from the server, or, in an exported page, from its own files.
"use strict";

const EXPORT = { contents: null, arrived: new Map(), waiting: new Map() };

function questionKey(question, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  given.sort(([one], [other]) => (one < other ? -1 : 1));
  return given.length ? `${question}?${new URLSearchParams(given)}` : question;
}

async function ask(question, parameters = {}) {
  const key = questionKey(question, parameters);
  if (EXPORT.contents) return fromFile(key);
  let response;
  try {
    response = await fetch(`api/${key}`);
  } catch {
    throw new Error("the server does not answer: is whet ui still running?");
  }
  let found;
  try { found = await response.json(); } catch { throw new Error(`the server answered ${response.status}`); }
  if (found.error !== undefined) throw new Error(found.error);
  return found;
}

function isExport() {
  return EXPORT.contents !== null;
}

// Calls `again` every `seconds` while the page is visible; returns what stops it.
function repeat(seconds, again) {
  let stopped = false;
  let timer;
  const tick = async () => {
    if (stopped) return;
    if (!document.hidden) {
      try { await again(); } catch { /* the next one may succeed */ }
    }
    if (!stopped) timer = setTimeout(tick, 1000 * seconds);
  };
  timer = setTimeout(tick, 1000 * seconds);
  return () => { stopped = true; clearTimeout(timer); };
}

// A file of an export is a script that hands its answer over: pages from file:// may not fetch.
function fromFile(key) {
  if (EXPORT.arrived.has(key)) return Promise.resolve(EXPORT.arrived.get(key));
  const file = EXPORT.contents.files[key];
  if (!file) return Promise.reject(new Error("this was left out of the export"));
  if (!EXPORT.waiting.has(key)) {
    EXPORT.waiting.set(key, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = file;
      script.onload = () => resolve(EXPORT.arrived.get(key));
      script.onerror = () => reject(new Error(`${file} is missing from the export`));
      document.head.append(script);
    }));
  }
  return EXPORT.waiting.get(key);
}

function exported(contents) {
  EXPORT.contents = contents;
}

function answered(key, answer) {
  EXPORT.arrived.set(key, answer);
}
