"use strict";

// Texts of runs enter the page as text nodes alone, so none of them can become markup.
const PAGE_ROWS = 100;
const STEPS = { tool_call: "call", error_recovery: "recovered error" };
const DIMENSIONS = ["complexity", "novelty", "tool diversity", "outcome confidence"];
const SORTS = { // by what to sort, ascending
  newest: run => run.index, oldest: run => -run.index, // the store's order, also of runs of one time
  best: run => -value(run), worst: run => value(run),
  new: run => -novelty(run), known: run => novelty(run),
};

let data, runs, byId, page = 0, shown = [], isUnsaved = false, isSending = false;
const answers = new Map(); // by trace id: {success, note}
const history = []; // {id, before}: what `undo` takes back, the latest last
const drawer = { list: [], at: -1, run: null, marked: null, notes: new Map() };

/* ---- small helpers ---- */

const byElementId = id => document.getElementById(id);
const on = (id, event, listener) => byElementId(id)?.addEventListener(event, listener);

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

function place(node, styles) {
  for (const [name, setting] of Object.entries(styles)) node.style.setProperty(name, setting);
  return node;
}

const value = run => run[run.gate] ?? -1;
// A value below a threshold has as many digits as show that it is.
function gated(run) {
  let digits = 3;
  while (digits < 6 && value(run) < run.threshold && fixed(run[run.gate], digits) === fixed(run.threshold, digits)) digits++;
  return fixed(run[run.gate], digits);
}
const novelty = run => run.dimensions[1]?.[0] ?? -1;
const fixed = (number, digits = 3) => number === null || number === undefined ? "–" : number.toFixed(digits).replace("-", "−");
const signed = number => number === null ? "–" : (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);
const percent = share => `${Math.round(share * 100)} %`;
const across = number => `${Math.min(1, Math.max(0, number ?? 0)) * 100}%`;
const count = (number, one, many = one + "s") => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
const whole = text => Array.isArray(text) ? `${text[0]} … ${text[2]}` : text ?? "";
const short = (run, most) => { const text = whole(run.objective); return text.length > most ? text.slice(0, most) + "…" : text; };
const shortId = id => id.replace("kp:trace:", "").slice(0, 8);

function time(at) {
  const two = number => String(number).padStart(2, "0");
  const date = new Date(at);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

function textNodes(text) {
  if (!Array.isArray(text)) return [text ?? ""];
  return [text[0], el("span", { class: "cut" }, ` … ${count(text[1], "character")} left out … `), text[2]];
}

const fields = pairs => el("dl", { class: "fields" },
  pairs.filter(pair => pair[1] !== null && pair[1] !== "").map(([name, ...content]) => [el("dt", {}, name), el("dd", {}, content)]));

/* ---- verdicts ---- */

function label(run) {
  const own = answers.get(run.id);
  if (own) return own.success;
  const stated = run.verdicts.filter(verdict => verdict[1] !== null);
  return stated.length ? stated[stated.length - 1][1] : null;
}

const storageKey = () => `kp-langchain ${data.store} ${data.made_at}`;

function saveAnswers() {
  try { sessionStorage.setItem(storageKey(), JSON.stringify([...answers])); } catch { /* not allowed here */ }
}

function loadAnswers() {
  try {
    for (const [id, given] of JSON.parse(sessionStorage.getItem(storageKey()) ?? "[]")) if (byId.has(id)) answers.set(id, given);
    isUnsaved = !data.stores_verdicts && answers.size > 0;
  } catch { /* not allowed here */ }
}

async function send(run, answer) {
  const response = await fetch("verdicts", {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ trace_id: run.id, success: answer.success, note: answer.note || null }),
  });
  const reply = await response.json();
  if (!response.ok) throw new Error(reply.error);
  for (const record of reply.runs) if (byId.has(record.id)) Object.assign(byId.get(record.id), record);
}

async function answer(success, advance = true) {
  if (isSending) return; // a key pressed again must not answer for the same run twice
  const run = drawer.run, given = { success, note: drawer.notes.get(run.id) ?? "" };
  const before = answers.get(run.id), scored = value(run);
  let change = "";
  if (data.stores_verdicts) {
    isSending = true;
    try { await send(run, given); } catch (error) { return say(`Not stored: ${error.message}`); } finally { isSending = false; }
    change = `: ${run.gate} ${fixed(scored)} to ${fixed(value(run))}, ${run.decision}`;
  }
  answers.set(run.id, given);
  history.push({ id: run.id, before });
  changed();
  const next = advance && byElementId("advance").checked && drawer.run === run;
  if (!(next && step(1)) && drawer.run === run) showRun(run);
  say(`${success ? "Success" : "Failure"} ${data.stores_verdicts ? "stored" : "noted"} for run ${shortId(run.id)}${change}. Undo: u.`);
}

function undo() {
  const last = history.pop();
  if (!last) return say("There is no verdict to undo.");
  const run = byId.get(last.id);
  if (data.stores_verdicts) {
    openRun(run);
    return say("The store keeps every verdict, and the newest counts. Answer again.");
  }
  if (last.before) answers.set(last.id, last.before); else answers.delete(last.id);
  changed();
  openRun(run);
  say(`The verdict on run ${shortId(run.id)} is taken back.`);
}

function changed() {
  isUnsaved = !data.stores_verdicts && answers.size > 0;
  saveAnswers();
  showAnswers();
  showRows();
  for (const card of document.querySelectorAll(".domain")) card.update();
}

function showAnswers() {
  byElementId("answers").hidden = answers.size === 0;
  byElementId("answered").textContent = `${count(answers.size, "verdict")} ${data.stores_verdicts ? "stored" : "given on this page"}`;
}

function download() {
  const lines = [...answers].map(([id, { success, note }]) => JSON.stringify(note ? { trace_id: id, success, note } : { trace_id: id, success }));
  const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  el("a", { href: url, download: "verdicts.jsonl" }).click();
  isUnsaved = false;
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* ---- domains ---- */

function startDomain(card, domain) {
  const find = selector => card.querySelector(selector);
  const chart = find(".chart"), handle = find(".handle"), proposal = find(".proposal");
  const judged = runs.filter(run => run.domain === domain.domain && run.gate === domain.gate), inForce = domain.threshold ?? 0.5;
  const mayPass = run => run.withheld === null && !FILTERS.duplicate(run);
  let threshold = inForce;

  card.update = () => {
    const passes = judged.filter(run => mayPass(run) && run[domain.gate] >= threshold);
    const labels = passes.map(label).filter(one => one !== null), figure = threshold.toFixed(2), aside = judged.length - judged.filter(mayPass).length;
    const text = `${passes.length.toLocaleString("en")} of ${count(judged.length, "run")} would pass at ${figure} (${percent(passes.length / Math.max(1, judged.length))}). `
      + (labels.length ? `${labels.filter(Boolean).length} of the ${labels.length} with a verdict succeeded.` : "None of them has a verdict.")
      + (aside ? ` ${count(aside, "near-duplicate or withheld run", "near-duplicates and withheld runs")} cannot pass.` : "");
    place(handle, { left: across(threshold) });
    handle.dataset.value = figure;
    handle.setAttribute("aria-valuenow", figure);
    handle.setAttribute("aria-valuetext", text);
    find("clipPath rect").setAttribute("x", threshold);
    find(".readout").textContent = text;
    find(".proposal code span").textContent = figure;
    proposal.hidden = threshold === inForce;
  };
  const move = to => { threshold = Math.round(Math.min(1, Math.max(0, to)) * 100) / 100; card.update(); };
  const follow = event => { const box = chart.getBoundingClientRect(); move((event.clientX - box.left) / box.width); };
  chart.addEventListener("pointerdown", event => {
    event.preventDefault();
    chart.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    follow(event);
  });
  chart.addEventListener("pointermove", event => { if (chart.hasPointerCapture(event.pointerId)) follow(event); });
  handle.addEventListener("keydown", event => {
    const steps = { ArrowRight: 0.01, ArrowUp: 0.01, ArrowLeft: -0.01, ArrowDown: -0.01, PageUp: 0.1, PageDown: -0.1, Home: -1, End: 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(threshold + steps[event.key]);
  });
  find(".proposal button").addEventListener("click", () => { threshold = inForce; card.update(); handle.focus(); });
  card.update();
}

/* ---- the table of runs ---- */

const FILTERS = {
  search: run => (run.haystack ??= [run.id, whole(run.objective), run.domain, ...run.tools, ...Object.values(run.keys)].join("\n").toLowerCase()),
  domain: run => run.domain, decision: run => run.decision, rule: run => run.rules.map(rule => rule[0]), tool: run => run.tools,
  recovered: run => run.recoveries > 0, duplicate: run => run.twin !== null || run.replaced_by !== null,
  withheld: run => run.withheld !== null,
};

function options(read) {
  const numbers = new Map();
  for (const run of runs) for (const name of new Set([read(run)].flat())) numbers.set(name, (numbers.get(name) ?? 0) + 1);
  return [...numbers].sort((one, other) => other[1] - one[1]).slice(0, 300);
}

function fillFilters() {
  for (const id of ["domain", "decision", "rule", "tool"])
    byElementId(id).append(...options(FILTERS[id]).map(([name, number]) => el("option", { value: name }, `${name} (${number})`)));
  on("filters", "input", filter);
}

function filter() {
  const words = byElementId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = ["domain", "decision", "rule", "tool"].map(id => [id, byElementId(id).value]).filter(pair => pair[1] !== "");
  const ticks = ["recovered", "duplicate", "withheld"].filter(id => byElementId(id).checked);
  const verdict = byElementId("verdict").value;
  const fits = { "": () => true, none: one => one === null, some: one => one !== null, true: one => one === true, false: one => one === false }[verdict];
  shown = runs.filter(run => words.every(one => FILTERS.search(run).includes(one))
    && chosen.every(([id, wanted]) => [FILTERS[id](run)].flat().includes(wanted))
    && ticks.every(id => FILTERS[id](run)) && fits(label(run)));
  const key = SORTS[byElementId("sort").value];
  shown.sort((one, other) => key(one) - key(other));
  page = 0;
  showRows();
}

function sortHead(name, down, up, attributes = {}) {
  const sort = byElementId("sort"), order = { [down]: "descending", [up]: "ascending" }[sort.value];
  const press = () => {
    sort.value = sort.value === down ? up : down;
    filter();
    document.querySelector(`[data-sort="${down}"]`).focus();
  };
  const arrow = { descending: " ↓", ascending: " ↑" }[order] ?? "";
  return el("th", { scope: "col", role: "columnheader", "aria-sort": order, ...attributes }, el("button", { onclick: press, "data-sort": down }, name, arrow));
}

function showRows() {
  const rows = shown.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS);
  byElementId("count").textContent = shown.length === runs.length ? count(runs.length, "run") : `${shown.length.toLocaleString("en")} of ${count(runs.length, "run")}`;
  const head = name => el("th", { scope: "col", role: "columnheader" }, name);
  byElementId("table").replaceChildren(rows.length ? el("table", { class: "runs", role: "table" }, el("caption", { class: "hidden" }, "Runs"),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, sortHead("Time", "newest", "oldest"), sortHead(runs.some(run => run.gate === "worth") ? "Score or worth" : "Score", "best", "worst"),
      sortHead("Novelty", "new", "known", { class: "novelty number" }), head("Decision"), head("Domain"), head("Objective"))),
    el("tbody", { role: "rowgroup" }, rows.map(tableRow)))
    : el("p", { class: "empty" }, runs.length ? "No run matches. Clear the search or a filter." : "There are no runs yet."));
  showPages();
}

function tableRow(run) {
  const cell = (attributes, ...content) => el("td", { role: "cell", ...attributes }, content), verdict = label(run);
  const row = el("tr", { role: "row", class: run.passed ? "passed" : null, onclick: () => openRun(run, shown) },
    cell({}, time(run.at)), cell({}, scoreBar(run)), cell({ class: "novelty number" }, fixed(run.dimensions[1]?.[0], 2)),
    cell({ class: "decision" }, run.decision, run.twin ? ` of ${shortId(run.twin[0])}` : "", run.withheld ? ", withheld" : ""), cell({}, run.domain),
    cell({ class: "objective" }, el("button", { class: "link", "data-id": run.id, "aria-haspopup": "dialog" }, whole(run.objective)),
      verdict === null ? null : el("span", { class: "muted" }, verdict ? "verdict: success" : "verdict: failure")));
  return row;
}

function scoreBar(run) {
  const track = el("span", { class: "track" }, place(el("i"), { left: "0", width: across(value(run)) }), place(el("b"), { left: across(run.threshold) }));
  return el("span", { class: "score", title: `${run.gate}, threshold ${fixed(run.threshold, 2)}` }, track, gated(run));
}

function showPages() {
  const last = Math.max(0, Math.ceil(shown.length / PAGE_ROWS) - 1);
  byElementId("pages").hidden = last === 0;
  byElementId("page").textContent = `Page ${page + 1} of ${last + 1}`;
  byElementId("earlier").disabled = page === 0;
  byElementId("later").disabled = page === last;
}

function turn(by) {
  page += by;
  showRows();
  byElementId("runs-title").scrollIntoView();
}

/* ---- the drawer of one run ---- */

const dialog = byElementId("drawer");

function say(text) {
  byElementId("said").textContent = text;
}

function openRun(run, list) {
  if (list) drawer.list = list.slice();
  const at = drawer.list.indexOf(run);
  if (at >= 0) drawer.at = at;
  say("");
  showRun(run);
}

function step(by) {
  const next = drawer.list[drawer.at + by];
  if (next) openRun(next); else say(by > 0 ? "This is the last run of the list." : "This is the first run of the list.");
  return Boolean(next);
}

function showBar(run) {
  const own = answers.get(run.id), listed = drawer.list.includes(run);
  byElementId("position").textContent = listed ? `Run ${drawer.at + 1} of ${drawer.list.length.toLocaleString("en")}` : "A run outside the list";
  byElementId("yes").setAttribute("aria-pressed", own?.success === true);
  byElementId("no").setAttribute("aria-pressed", own?.success === false);
  byElementId("note").value = drawer.notes.get(run.id) ?? own?.note ?? "";
  byElementId("verdicts").hidden = false;
}

// Shows one run, or two side by side, and moves the focus there unless it is on a button that stays.
function show(isWide, ...content) {
  dialog.classList.toggle("wide", isWide);
  byElementId("inside").replaceChildren(...content.filter(Boolean));
  const isNew = !dialog.open;
  if (isNew) dialog.showModal();
  dialog.scrollTop = 0;
  if (isNew || !document.activeElement.closest(".bar")) byElementId("drawer-title").focus({ preventScroll: true });
}

function showRun(run) {
  drawer.run = run;
  showBar(run);
  const result = el("div", { class: "text result", tabindex: 0, role: "group", "aria-label": "Answer" }, "…"), steps = el("div");
  show(false,
    el("h2", { id: "drawer-title", class: "text", tabindex: 0 }, textNodes(run.objective)),
    el("p", { class: "muted" }, `${time(run.at)} · ${run.domain} · ${run.decision} · `, el("code", {}, run.id)),
    run.withheld ? el("p", { class: "notice" }, `Withheld: ${run.withheld}.`) : null,
    el("h3", {}, "Answer"), result, el("h3", {}, "Score"), waterfall(run), facts(run), compareRow(run), steps, el("h3", {}, "Verdicts in the store"), verdictList(run));
  traceOf(run).then(trace => {
    result.replaceChildren(...textNodes(trace ? trace.result || "The run gave no answer." : missing(run)));
    if (trace?.claims) result.after(el("p", { class: "muted" }, `Claims: ${trace.claims}.`));
    if (trace) steps.replaceChildren(...stepsOf(trace));
  }, error => result.replaceChildren(`The trace cannot be read: ${error.message}`));
}

function waterfall(run) {
  const rows = [];
  const row = (name, from, to, figure, why, kind = "", threshold = null) => {
    const bar = place(el("i", { class: to < from ? "minus" : "plus" }), { left: across(Math.min(from, to)), width: across(Math.abs(to - from)) });
    const mark = threshold === null ? null : place(el("b"), { left: across(threshold) });
    rows.push(el("tr", { class: kind, role: "row" }, el("td", { role: "cell" }, name), el("td", { class: "lane", role: "cell" }, el("div", { class: "track" }, bar, mark)),
      el("td", { class: "number", role: "cell" }, figure), el("td", { class: "why", role: "cell" }, why)));
  };
  const reaches = `${run[run.gate] >= run.threshold ? "reaches" : "is below"} the threshold of ${fixed(run.threshold)}`;
  let sum = 0;
  run.dimensions.forEach(([figure, weight, added, why], at) => {
    row(DIMENSIONS[at] ?? "", sum, sum + (added ?? 0), signed(added), `${fixed(figure)} × ${fixed(weight, 2)}: ${why}`);
    sum += added ?? 0;
  });
  for (const [name, before, after, why] of run.rules) row(`rule ${name}`, before ?? 0, after ?? 0, signed((after ?? 0) - (before ?? 0)), why);
  row("score", 0, run.score ?? 0, run.gate === "score" ? gated(run) : fixed(run.score), run.gate === "score" ? reaches : "", "total", run.gate === "score" ? run.threshold : null);
  if (run.worth !== null) row("worth", 0, run.worth, run.gate === "worth" ? gated(run) : fixed(run.worth), `confidence ${fixed(run.confidence_of_worth, 2)} × (0.5 + novelty / 2)${run.gate === "worth" ? "; " + reaches : ""}`, "total", run.gate === "worth" ? run.threshold : null);
  return el("table", { class: "waterfall", role: "table" }, el("caption", { class: "hidden" }, "How the score adds up"), el("tbody", { role: "rowgroup" }, rows));
}

function runLink(id) {
  const other = byId.get(id);
  return other ? el("button", { class: "link", onclick: () => openRun(other) }, short(other, 160)) : el("code", {}, `${id ?? "a vector without a key"} (not on this page)`);
}

function facts(run) {
  const redacted = run.redactions === null ? "not counted by the version that stored this run"
    : Object.entries(run.redactions).map(([kind, number]) => `${kind} ${number}`).join(", ") || "nothing";
  return fields([
    ["Nearest run", run.nearest ? [`similarity ${fixed(run.nearest[1], 2)}: `, runLink(run.nearest[0])] : `none: ${run.novelty_source}`],
    ["Twin of", run.twin ? [`similarity ${fixed(run.twin[1], 2)}; that one was kept, and this one is not surer: `, runLink(run.twin[0])] : null],
    ["Replaced by", run.replaced_by ? ["a run that repeats it and was surer: ", runLink(run.replaced_by)] : null],
    ["Shown to it", run.shown && run.shown.map(([id, text]) => el("div", {}, text, id ? [": ", runLink(id)] : ""))],
    ["Credit", run.credit],
    ["Planted", run.planted],
    ["Outcome", run.outcome],
    ["Redacted", redacted],
    ["Left out", Object.entries(run.dropped ?? {}).map(([kind, number]) => `${number} ${kind}`).join(", ")],
    ["Weights", `profile ${run.profile}`],
    ...Object.entries(run.keys).map(([name, text]) => [name[0].toUpperCase() + name.slice(1), text]),
    ["Privacy", run.privacy],
    ["Steps kept until", run.kept_until === null ? null : time(run.kept_until)],
  ]);
}

function compareRow(run) {
  const near = byId.get(run.twin?.[0] ?? run.nearest?.[0]), marked = drawer.marked;
  return el("div", { class: "row" },
    marked && marked !== run ? el("button", { class: "main", onclick: () => compare(marked, run) }, `Compare with ${shortId(marked.id)}`, el("kbd", {}, "c"))
      : el("button", { onclick: markOrCompare, "aria-pressed": String(marked === run) }, marked === run ? "Marked for comparison" : "Mark for comparison", el("kbd", {}, "c")),
    near && near !== run ? el("button", { onclick: () => compare(run, near) }, run.twin ? "Compare with its twin" : "Compare with the nearest run") : null);
}

function markOrCompare() {
  const marked = drawer.marked;
  if (marked && marked !== drawer.run) return compare(marked, drawer.run);
  drawer.marked = marked ? null : drawer.run;
  showRun(drawer.run);
  say(drawer.marked ? "Marked. Open another run and press c to compare the two." : "No longer marked.");
}

function verdictList(run) {
  if (!run.verdicts.length) return el("p", { class: "muted" }, "None.");
  return el("ul", {}, run.verdicts.map(([at, success, confidence, note, source]) => el("li", {}, `${at === null ? "" : time(at) + ", "}${source}: `
    + `${success === null ? "success not stated" : success ? "success" : "failure"}${confidence === null ? "" : `, confidence ${fixed(confidence, 2)}`}${note ? `: ${note}` : ""}`)));
}

/* ---- steps ---- */

const blocks = new Map();

async function traceOf(run) {
  const number = Math.floor(run.index / data.runs_per_block);
  if (!blocks.has(number)) blocks.set(number, unpack(`traces-${number}`));
  return (await blocks.get(number))[run.index % data.runs_per_block];
}

const missing = run => run.withheld ? "Not kept, because the run was withheld." : "The store does not have the trace of this run.";

function stepsOf(trace) {
  const details = trace.steps.map(stepDetails), left = trace.left_out;
  const toggle = () => { const open = !details.every(one => one.open); for (const one of details) one.open = open; };
  return [el("h3", {}, `Steps (${details.length + left})`), el("p", {}, el("button", { onclick: toggle }, "Open or close all")), ...details,
    left ? el("p", { class: "cut" }, `${count(left, "more step")} left out`) : ""];
}

function stepDetails([type, tool, text, input, latency, tries], at) {
  const first = whole(input ?? text).replace(/\s+/g, " ").slice(0, 120);
  return el("details", { class: "step" },
    el("summary", {}, `${at} ${STEPS[type] ?? type}${tool ? ` ${tool}` : ""}`, el("span", { class: "muted" }, first)),
    input === null ? null : el("pre", { class: "mono text" }, textNodes(input)),
    text === "" ? null : el("p", { class: "text" }, textNodes(text)),
    latency === null && tries === 1 ? null : el("p", { class: "muted text" }, [latency === null ? "" : `${latency.toLocaleString("en")} ms`, tries > 1 ? `tried ${tries} times` : ""].filter(Boolean).join(", ")));
}

/* ---- two runs side by side ---- */

async function compare(left, right) {
  const [one, other] = await Promise.all([traceOf(left), traceOf(right)]);
  const pairs = align(one?.steps ?? [], other?.steps ?? []);
  const head = run => el("td", {}, el("button", { class: "link", onclick: () => openRun(run) }, short(run, 140)),
    el("p", { class: "muted" }, `${time(run.at)} · ${run.decision} · ${run.gate} ${gated(run)}, threshold ${fixed(run.threshold)}`), el("p", { class: "muted" }, run.outcome));
  const table = (...rows) => el("table", { class: "sides" }, el("tbody", {}, rows));
  Object.assign(drawer, { run: right, marked: null });
  byElementId("verdicts").hidden = true;
  say("");
  show(true, el("h2", { id: "drawer-title", tabindex: -1 }, "Two runs side by side"),
    el("p", {}, el("button", { onclick: () => openRun(right) }, "Back to the run")),
    table(el("tr", {}, head(left), head(right)), el("tr", {}, [[left, one], [right, other]].map(([run, trace]) => el("td", { class: "text" }, textNodes(trace ? trace.result || "The run gave no answer." : missing(run)))))),
    el("h3", {}, "What each part adds to the score"), differences(left, right), el("h3", {}, "Steps"),
    el("p", { class: "muted" }, pairs.some(pair => pair.same) ? "Calls of the same tool stand side by side, on a tinted ground." : "No call of a tool is common to the two runs."),
    table(pairs.map(pair => el("tr", { class: pair.same ? "same" : null }, pair.steps.map(one => el("td", {}, one ? stepDetails(...one) : ""))))));
}

function differences(left, right) {
  const rule = (run, name) => { const fired = run.rules.find(one => one[0] === name); return fired ? fired[2] - fired[1] : 0; };
  const rows = DIMENSIONS.map((name, at) => [name, left.dimensions[at]?.[2] ?? 0, right.dimensions[at]?.[2] ?? 0]);
  for (const name of new Set([...left.rules, ...right.rules].map(one => one[0]))) rows.push([`rule ${name}`, rule(left, name), rule(right, name)]);
  rows.push(["score", left.score, right.score]);
  if (left.worth !== null || right.worth !== null) rows.push(["worth", left.worth, right.worth]);
  const cells = ["", "left", "right", "difference"].map((name, at) => el("th", { scope: "col", class: at ? "number" : null }, name || el("span", { class: "hidden" }, "Part")));
  return el("table", {}, el("thead", {}, el("tr", {}, cells)), el("tbody", {}, rows.map(([name, one, other]) => el("tr", {}, el("td", {}, name),
    [fixed(one), fixed(other), one === null || other === null ? "–" : Math.abs(other - one) < 0.0005 ? "same" : signed(other - one)].map(text => el("td", { class: "number" }, text))))));
}

// Aligns steps by their tool calls: a longest common subsequence, in which equal inputs count more.
function align(left, right) {
  const calls = steps => steps.flatMap((one, at) => one[0] === "tool_call" ? [at] : []);
  const ours = calls(left), theirs = calls(right);
  const gain = (i, j) => left[ours[i]][1] !== right[theirs[j]][1] ? 0 : JSON.stringify(left[ours[i]][3]) === JSON.stringify(right[theirs[j]][3]) ? 1001 : 1000;
  const best = Array.from({ length: ours.length + 1 }, () => new Array(theirs.length + 1).fill(0));
  for (let i = ours.length - 1; i >= 0; i--) for (let j = theirs.length - 1; j >= 0; j--)
    best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], gain(i, j) ? gain(i, j) + best[i + 1][j + 1] : 0);
  const pairs = [];
  let from = 0, against = 0;
  const between = (to, until) => {
    for (; from < to || against < until; from++, against++)
      pairs.push({ steps: [from < to ? [left[from], from] : null, against < until ? [right[against], against] : null] });
    from = to; against = until;
  };
  for (let i = 0, j = 0; i < ours.length && j < theirs.length;) {
    if (gain(i, j) && best[i][j] === gain(i, j) + best[i + 1][j + 1]) {
      between(ours[i], theirs[j]);
      pairs.push({ same: true, steps: [[left[from], from], [right[against], against]] });
      from++; against++; i++; j++;
    } else if (best[i][j] === best[i + 1][j]) i++; else j++;
  }
  between(left.length, right.length);
  return pairs;
}

/* ---- keys, and the beginning ---- */

dialog.addEventListener("keydown", event => {
  if (event.target.id === "note") {
    if (event.key !== "Escape" && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    event.target.blur();
    byElementId("drawer-title").focus({ preventScroll: true });
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const comparing = dialog.classList.contains("wide");
  const keys = { j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1) };
  if (!comparing) Object.assign(keys, { y: () => answer(true), n: () => answer(false), u: undo, c: markOrCompare, o: () => byElementId("note").focus() });
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

dialog.addEventListener("close", () => {
  const buttons = [...document.querySelectorAll("[data-id]")];
  (buttons.find(button => button.dataset.id === drawer.run?.id) ?? buttons[0] ?? byElementId("search")).focus();
  drawer.run = null;
});

dialog.addEventListener("click", event => { if (event.target === dialog && event.offsetX < 0) dialog.close(); });

window.addEventListener("beforeunload", event => { if (isUnsaved) event.preventDefault(); });

async function unpack(id) {
  const packed = atob(JSON.parse(byElementId(id).textContent));
  const bytes = Uint8Array.from(packed, letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function listen() {
  on("earlier", "click", () => turn(-1));
  on("later", "click", () => turn(1));
  on("download", "click", download);
  on("previous", "click", () => step(-1));
  on("next", "click", () => step(1));
  on("close", "click", () => dialog.close());
  on("yes", "click", () => answer(true));
  on("no", "click", () => answer(false));
  on("undo", "click", undo);
  on("note", "input", event => drawer.notes.set(drawer.run.id, event.target.value));
  on("note", "change", event => {
    const given = answers.get(drawer.run?.id);
    if (given && given.note !== event.target.value) answer(given.success, false);
  });
}

async function begin() {
  if (typeof DecompressionStream === "undefined")
    throw new Error("this browser has no DecompressionStream. Use Chrome 80, Firefox 113, Safari 16.4, or a later one");
  data = await unpack("runs");
  runs = data.runs;
  byId = new Map(runs.map(run => [run.id, run]));
  runs.forEach((run, index) => { run.index = index; });
  loadAnswers();
  document.querySelectorAll(".domain").forEach((card, at) => startDomain(card, data.domains[at]));
  fillFilters();
  filter();
  showAnswers();
  listen();
  byElementId("review").hidden = false;
  document.documentElement.dataset.ready = "true";
}

begin().catch(error => { byElementId("state").textContent = `The page cannot be shown: ${error.message}`; });
