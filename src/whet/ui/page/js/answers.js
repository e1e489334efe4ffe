// Answers to questions: from the server, or, in an exported page, from its own files (bundle.js).
"use strict";

const EXPORT = { contents: null, arrived: new Map(), waiting: new Map() };

function questionKey(question, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  given.sort(([one], [other]) => (one < other ? -1 : 1));
  return given.length ? `${question}?${new URLSearchParams(given)}` : question;
}

async function ask(question, parameters = {}) {
  if (EXPORT.contents) return askExport(question, parameters);
  const key = questionKey(question, parameters);
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
