// Line charts as SVG that can grow: read with the pointer, or with the arrow keys as a slider.
"use strict";

const FRAME = { width: 380, height: 190, left: 48, right: 10, top: 10, bottom: 22 };
const WIDE = { ...FRAME, width: 860, height: 150 };
const COLOURS = 8;  // in the style sheet; beyond them lines are dashed
const DOTTED_UP_TO = 24;  // points that are marked

// A chart with a heading. `panel`: title, unit, floor, ceiling, log, scale, wide, healthy (the ends of a range of values),
// about (a node that explains it).
// `lines`: label, colour, steps, values, and low and high of a band. `draw(lines)` draws it anew.
function chart(panel, lines) {
  const at = h("span", { class: "at" });
  const legend = h("div", { class: "legend" });
  const frame = panel.wide ? WIDE : FRAME;
  const picture = svg("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, tabindex: 0, role: "slider" });
  const node = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, panel.title), h("span", { class: "chart-unit" }, panel.unit),
      panel.about ?? null, h("span", { class: "grow" }), at),
    legend, picture);
  const state = { panel, frame, at, legend, picture, place: null };
  picture.addEventListener("pointermove", (event) => pointAt(state, event));
  picture.addEventListener("pointerleave", () => leave(state));
  picture.addEventListener("blur", () => leave(state));
  picture.addEventListener("keydown", (event) => stepWithKeys(state, event));
  const draw = (found) => { redraw(state, found); return node; };
  draw(lines);
  return { node, draw };
}

function redraw(state, lines) {
  const { panel, frame, picture, legend } = state;
  state.lines = lines.filter((line) => line.steps.length).map((line) => drawable(line, panel));
  picture.replaceChildren();
  if (!state.lines.length) return;
  state.scale = scaleOf(state.lines, panel, frame);
  state.steps = [...new Set(state.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  picture.append(...axes(state.scale, frame), ...healthyRange(panel, state.scale, frame), ...state.lines.map((line) => lineGroup(line, state.scale)));
  state.cursor = svg("line", { class: "cursor", y1: frame.top, y2: frame.height - frame.bottom, visibility: "hidden" });
  picture.append(state.cursor);
  legend.replaceChildren(...state.lines.map((line) => {
    line.reading = h("span", { class: "reading" }, number(line.values.at(-1)));
    return h("span", { class: `key ${colourClass(line.colour)}` }, line.label, " ", line.reading);
  }));
  const latest = state.lines.map((line) => `${line.label} ${number(line.values.at(-1))}`).join(", ");
  const last = state.steps.at(-1);
  for (const [name, value] of Object.entries({
    "aria-label": `${panel.title}${panel.unit ? `, ${panel.unit}` : ""}: arrow keys read it`,
    "aria-valuemin": state.steps[0], "aria-valuemax": last, "aria-valuenow": last,
    "aria-valuetext": `latest, step ${last}: ${latest}`,
  })) picture.setAttribute(name, plainText(value));
}

function colourClass(colour) {
  return `colour${colour % COLOURS}${colour >= COLOURS ? " dashed" : ""}`;
}

// Scaled, smoothed if it is noisy, without values that a logarithm cannot show.
function drawable(line, panel) {
  const factor = panel.scale ?? 1;
  const kept = line.values.map((value, i) => i).filter((i) => !panel.log || line.values[i] > 0);
  const steps = kept.map((i) => line.steps[i]);
  const raw = kept.map((i) => factor * line.values[i]);
  const window = panel.plain ? 1 : smoothingWindow(raw.length);
  const band = line.low ? { low: kept.map((i) => factor * line.low[i]), high: kept.map((i) => factor * line.high[i]) } : {};
  return { ...line, ...band, steps, values: smooth(raw, window), faint: window > 1 ? raw : null };
}

function scaleOf(lines, panel, frame) {
  let [first, last, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const line of lines) {
    for (const step of line.steps) { first = Math.min(first, step); last = Math.max(last, step); }
    for (const values of [line.values, line.faint, line.low, line.high]) {
      for (const value of values ?? []) { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  if (panel.log) [low, high] = [Math.log10(low), Math.log10(high)];
  const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  low = panel.floor ?? low - room;
  high = panel.ceiling ?? high + room;
  if (high <= low) high = low + 1;
  if (first <= Math.max(1, last / 20)) first = 0;
  last = Math.max(first + 1, last);
  const wide = frame.width - frame.left - frame.right, tall = frame.height - frame.top - frame.bottom;
  return {
    first, last, low, high, log: panel.log,
    x: (step) => frame.left + (wide * (step - first)) / (last - first),
    y: (value) => frame.height - frame.bottom - (tall * ((panel.log ? Math.log10(value) : value) - low)) / (high - low),
  };
}

function axes(scale, frame) {
  const nodes = [];
  const levels = scale.log
    ? ticks(Math.ceil(scale.low), Math.floor(scale.high), 4).filter(Number.isInteger).map((power) => 10 ** power)
    : ticks(scale.low, scale.high);
  const texts = levelTexts(levels);
  for (const [i, level] of levels.entries()) {
    const y = scale.y(level).toFixed(1);
    nodes.push(svg("line", { class: "grid", x1: frame.left, x2: frame.width - frame.right, y1: y, y2: y }));
    nodes.push(svg("text", { class: "tick", x: frame.left - 7, y, dy: "0.32em", "text-anchor": "end" }, texts[i]));
  }
  for (const step of ticks(scale.first, scale.last).filter(Number.isInteger)) {
    const x = scale.x(step).toFixed(1);
    nodes.push(svg("text", { class: "tick", x, y: frame.height - 5, "text-anchor": "middle" }, count(step)));
  }
  return nodes;
}

// The values of runs that learn, as far as they are on the chart.
function healthyRange(panel, scale, frame) {
  if (!panel.healthy || panel.log) return [];
  const factor = panel.scale ?? 1;
  const [low, high] = panel.healthy.map((end, i) => (end === null ? [scale.low, scale.high][i] : factor * end));
  const top = scale.y(Math.min(high, scale.high)), bottom = scale.y(Math.max(low, scale.low));
  if (bottom - top < 1) return [];
  return [svg("rect", { class: "healthy", x: frame.left, width: frame.width - frame.left - frame.right, y: top, height: bottom - top })];
}

function lineGroup(line, scale) {
  const joined = (values) => values.map((value, i) => `${scale.x(line.steps[i]).toFixed(1)},${scale.y(value).toFixed(1)}`);
  const group = svg("g", { class: colourClass(line.colour) });
  if (line.low) {
    group.append(svg("polygon", { class: "band", points: [...joined(line.high), ...joined(line.low).reverse()].join(" ") }));
  }
  if (line.faint) group.append(svg("polyline", { class: "faint", points: joined(line.faint).join(" ") }));
  group.append(svg("polyline", { class: "curve", points: joined(line.values).join(" ") }));
  if (line.steps.length <= DOTTED_UP_TO) {
    line.steps.forEach((step, i) => group.append(
      svg("circle", { class: "dot", cx: scale.x(step).toFixed(1), cy: scale.y(line.values[i]).toFixed(1), r: 2.4 })));
  }
  return group;
}

function nearest(steps, wanted) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(steps[low] - wanted) <= Math.abs(steps[high] - wanted) ? low : high;
}

function pointAt(state, event) {
  if (!state.lines.length) return;
  const box = state.picture.getBoundingClientRect();
  const { first, last } = state.scale, { width, left, right } = state.frame;
  const x = ((event.clientX - box.left) / box.width) * width;
  const share = Math.min(1, Math.max(0, (x - left) / (width - left - right)));
  readAt(state, nearest(state.steps, first + share * (last - first)));
}

// Shows the values at a step in the legend, and tells them to a screen reader.
function readAt(state, place) {
  state.place = place;
  const step = state.steps[place], x = state.scale.x(step);
  state.cursor.setAttribute("x1", x);
  state.cursor.setAttribute("x2", x);
  state.cursor.setAttribute("visibility", "visible");
  state.at.textContent = `step ${count(step)}`;
  const told = state.lines.map((line) => {
    const value = number(line.values[nearest(line.steps, step)]);
    line.reading.textContent = value;
    return `${line.label} ${value}`;
  });
  state.picture.setAttribute("aria-valuenow", step);
  state.picture.setAttribute("aria-valuetext", plainText(`step ${step}: ${told.join(", ")}`));
}

function leave(state) {
  if (!state.cursor) return;
  state.place = null;
  state.cursor.setAttribute("visibility", "hidden");
  state.at.textContent = "";
  for (const line of state.lines) line.reading.textContent = number(line.values.at(-1));
}

function stepWithKeys(state, event) {
  if (!state.lines.length) return;
  const last = state.steps.length - 1, place = state.place ?? last, page = Math.max(1, Math.round(last / 10));
  const moves = {
    ArrowLeft: place - 1, ArrowDown: place - 1, ArrowRight: place + 1, ArrowUp: place + 1,
    PageDown: place - page, PageUp: place + page, Home: 0, End: last,
  };
  if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  readAt(state, Math.min(last, Math.max(0, moves[event.key])));
}
