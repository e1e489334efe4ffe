// Elements from data. Every string goes through `pieces`: it becomes text, never markup, and what a screen would act on
// or hide (controls, direction changes, invisible characters) is shown by its number.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const ACTIVE = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u200e" +
  "\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\uffff" +
  "\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]" +
  "|(?<=[\\u200c\\u200d])[\\u200c\\u200d\\ufe0e\\ufe0f]|(?<=[\\ufe0e\\ufe0f])[\\ufe0e\\ufe0f]", "gu");
const LONGEST = 20000;  // characters of one text that are put on the page at once

// The text as nodes: plain text, and a marked name for each active character.
function pieces(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(ACTIVE)) {
    if (match.index > from) nodes.push(document.createTextNode(text.slice(from, match.index)));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const name = document.createElement("span");
    name.className = "control";
    name.title = `character U+${code}`;
    name.append(match[0] === "\r" ? "␍" : match[0] === "\u001b" ? "␛" : `U+${code}`);
    nodes.push(name);
    from = match.index + match[0].length;
  }
  if (from < text.length) nodes.push(document.createTextNode(text.slice(from)));
  return nodes;
}

// Attribute values are text too: the same characters are replaced.
function plainText(text) {
  return String(text).replace(ACTIVE, "\ufffd");
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : plainText(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    if (child instanceof Node) node.append(child);
    else node.append(...pieces(String(child)));
  }
  return node;
}

function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Text of a model or of data: kept as written, in its own direction; a long one is cut until it is asked for.
function said(text, limit = LONGEST) {
  const node = h("div", { class: "text", dir: "auto" });
  if (!text) {
    node.append(h("span", { class: "empty" }, "empty"));
    return node;
  }
  const show = (upTo) => {
    const rest = text.length - upTo;
    const more = () => show(upTo + LONGEST);
    node.replaceChildren(
      ...pieces(text.slice(0, upTo)),
      ...(rest > 0 ? [h("button", { type: "button", class: "more", onclick: more }, `… ${count(rest)} more characters`)] : []),
    );
  };
  show(limit);
  return node;
}

function link(to, ...children) {
  return h("a", { href: to }, ...children);
}

// The address of a view on this page: #name?key=value.
function address(view, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const parameters = new URLSearchParams();
  for (const [name, value] of given) for (const one of [value].flat()) parameters.append(name, one);
  return `#${view}${given.length ? `?${parameters}` : ""}`;
}

function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, text ?? kind);
}

// A table with a header row; cells are strings or nodes. `numeric` are the columns of numbers.
function table(head, rows, { label, numeric = [] } = {}) {
  const side = (index) => (numeric.includes(index) ? "number" : undefined);
  return h("div", { class: "table", role: "region", "aria-label": label, tabindex: 0 }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((name, i) => h("th", { scope: "col", class: side(i) }, name)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => h("td", { class: side(i) }, cell)))))));
}

function definitions(pairs) {
  return h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function problemList(problems) {
  if (!problems?.length) return null;
  return h("div", { class: "problem", role: "note" }, h("strong", {}, "Not everything here could be read"),
    h("ul", {}, problems.map((one) => h("li", {}, one))));
}

function announce(text) {
  document.getElementById("spoken").textContent = plainText(text);
}
