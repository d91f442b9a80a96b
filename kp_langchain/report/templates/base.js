"use strict";

// Texts of runs enter the page as text nodes alone, so none of them can become markup.

let data, runs, byId; // what the page has; its runs, the newest first; and these by trace id

/* ---- elements ---- */

const byElementId = id => document.getElementById(id);
const on = (id, event, listener) => byElementId(id).addEventListener(event, listener);

// Returns an element. An attribute named on... is a listener; one that is null or false is left out.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, setting] of Object.entries(attributes)) {
    if (setting === null || setting === undefined || setting === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), setting);
    else node.setAttribute(name, setting === true ? "" : setting);
  }
  node.append(...children.flat(3).filter(child => child !== null && child !== undefined));
  return node;
}

// Sets styles as properties: the page's policy forbids them as attributes.
function place(node, styles) {
  for (const [name, setting] of Object.entries(styles)) node.style.setProperty(name, setting);
  return node;
}

// The parts of a table have their roles stated: on a narrow screen they are no table to the browser.
const cell = (attributes, ...content) => el("td", { role: "cell", ...attributes }, content);
const tableRow = (attributes, ...cells) => el("tr", { role: "row", ...attributes }, cells);
const hidden = text => el("span", { class: "hidden" }, text);
const unit = text => el("span", { class: "unit" }, text); // which a heading says on a wide screen

function table(name, className, head, rows) {
  return el("table", { class: className, role: "table" }, el("caption", { class: "hidden" }, name),
    head.length ? el("thead", { role: "rowgroup" }, tableRow({}, head)) : null,
    el("tbody", { role: "rowgroup" }, rows));
}

const heading = (name, attributes = {}) => el("th", { scope: "col", role: "columnheader", ...attributes }, name);

// Returns a heading that sorts; `order` is ascending, descending, or undefined if another one does.
function sortHeading(name, order, press, attributes = {}) {
  const arrow = { descending: " ↓", ascending: " ↑" }[order] ?? "";
  return heading(el("button", { onclick: press, "data-sort": name }, name, arrow), { "aria-sort": order, ...attributes });
}

// Returns a track from 0 to 1, filled up to a value, with a mark at a threshold.
function track(filled, threshold) {
  return el("span", { class: "track" }, place(el("i"), { left: "0", width: across(filled) }), place(el("b"), { left: across(threshold) }));
}

// Returns upright bars of these heights, 0 to 1.
function bars(heights, className) {
  return el("div", { class: `bars ${className}`, "aria-hidden": "true" }, heights.map(height => place(el("i"), { height: across(height) })));
}

const fields = pairs => el("dl", { class: "fields" },
  pairs.filter(pair => pair[1] !== null && pair[1] !== "").map(([name, ...content]) => [el("dt", {}, name), el("dd", {}, content)]));

/* ---- figures and texts ---- */

const fixed = (number, digits = 2) => number === null || number === undefined ? "–" : number.toFixed(digits).replace("-", "−");
const signed = number => number === null ? "–" : (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);
const percent = share => share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
const across = number => `${Math.min(1, Math.max(0, number ?? 0)) * 100}%`;
const whole = text => Array.isArray(text) ? `${text[0]} … ${text[2]}` : text ?? "";
const amount = number => number.toLocaleString("en");
const count = (number, one, many = one + "s") => `${amount(number)} ${number === 1 ? one : many}`;
const listed = counts => Object.entries(counts).map(([kind, number]) => `${kind} ${amount(number)}`).join(", ");

function textNodes(text) {
  if (!Array.isArray(text)) return [text ?? ""];
  return [text[0], el("span", { class: "cut" }, ` … ${count(text[1], "character")} left out … `), text[2]];
}

const two = number => String(number).padStart(2, "0");
const day = at => new Date(at).toLocaleDateString("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const date = at => `${new Date(at).getFullYear()}-${two(new Date(at).getMonth() + 1)}-${two(new Date(at).getDate())}`;
const clock = at => `${two(new Date(at).getHours())}:${two(new Date(at).getMinutes())}`;
const time = at => `${date(at)} ${clock(at)}`;

/* ---- runs ---- */

const value = run => run[run.gate] ?? -1;
const novelty = run => run.dimensions[1]?.[0] ?? -1;
const isKept = run => run.decision === "kept";
const isTwin = run => run.twin !== null || run.replaced_by !== null;
const short = (run, most) => { const text = whole(run.objective); return text.length > most ? text.slice(0, most) + "…" : text; };
const shortId = id => id.replace("kp:trace:", "").slice(0, 8);

// A value below its threshold, and that threshold, have as many digits as show which one is lower.
function digits(run) {
  let number = 2;
  while (number < 6 && value(run) < run.threshold && fixed(run[run.gate], number) === fixed(run.threshold, number)) number++;
  return number;
}
const gated = run => fixed(run[run.gate], digits(run));
const thresholdOf = run => fixed(run.threshold, digits(run));

/* ---- traces ---- */

const blocks = new Map();

async function unpack(id) {
  const packed = atob(JSON.parse(byElementId(id).textContent));
  const bytes = Uint8Array.from(packed, letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function traceOf(run) {
  const number = Math.floor(run.index / data.runs_per_block);
  if (!blocks.has(number)) blocks.set(number, unpack(`traces-${number}`));
  return (await blocks.get(number))[run.index % data.runs_per_block];
}
