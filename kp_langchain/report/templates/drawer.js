/* ---- the drawer: one run, and how its score came about ---- */

const STEPS = { tool_call: "call", error_recovery: "recovered error" };
const DIMENSIONS = ["complexity", "novelty", "tool diversity", "outcome confidence"];

const dialog = byElementId("drawer");
const drawer = { list: [], at: -1, run: null, marked: null, notes: new Map() };

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
  const own = answers.get(run.id), isListed = drawer.list.includes(run);
  byElementId("position").textContent = isListed ? `Run ${amount(drawer.at + 1)} of ${amount(drawer.list.length)}` : "A run outside the list";
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
  writeLink();
}

function showRun(run) {
  drawer.run = run;
  showBar(run);
  const answered = el("div", { class: "text answered", tabindex: 0, role: "group", "aria-label": "Answer" }, "…"), claims = el("div"), steps = el("div");
  show(false,
    el("h2", { id: "drawer-title", class: "text", tabindex: 0 }, textNodes(run.objective)),
    el("p", { class: "muted" }, `${time(run.at)} · ${run.domain} · ${DECISIONS[run.decision] ?? run.decision} · `, el("code", {}, run.id)),
    run.withheld ? el("p", { class: "notice" }, `Withheld: ${run.withheld}.`) : null,
    el("h3", {}, "Answer"), answered, claims, el("h3", {}, "Score"), waterfall(run), facts(run), compareRow(run), steps, el("h3", {}, "Verdicts in the store"), verdictList(run));
  traceOf(run).then(trace => {
    answered.replaceChildren(...(trace ? markClaims(trace.result || "The run gave no answer.", trace.claims.unseen) : [missing(run)]));
    if (trace) claims.replaceChildren(...claimLines(trace.claims));
    if (trace) steps.replaceChildren(...stepsOf(trace));
  }, error => answered.replaceChildren(`The trace cannot be read: ${error.message}`));
}

/* ---- what the answer claims ---- */

function claimLines({ tone, seen, unseen }) {
  return [
    unseen.length ? el("p", { class: "warn" }, `No tool returned ${unseen.join(", ")}.`) : null,
    seen.length ? el("p", { class: "muted" }, `Tools returned ${seen.join(", ")}.`) : null,
    tone.length ? el("p", { class: "muted" }, `It sounds ${tone.join(", ")}.`) : null,
  ].filter(Boolean);
}

// Returns the nodes of an answer, with a mark on each number and name that no tool returned.
function markClaims(text, unseen) {
  if (!unseen.length) return textNodes(text);
  const words = [...unseen].sort((one, other) => other.length - one.length).map(word => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})(?![\\p{L}\\p{N}])`, "u");
  return textNodes(text).flatMap(node => typeof node === "string" ? node.split(pattern).map((part, at) => at % 2 ? el("mark", {}, part) : part) : [node]);
}

/* ---- how the score adds up ---- */

function waterfall(run) {
  const rows = [];
  const row = (name, from, to, figure, why, kind, isGated) => {
    const bar = place(el("i", { class: to < from ? "minus" : "plus" }), { left: across(Math.min(from, to)), width: across(Math.abs(to - from)) });
    const mark = isGated ? place(el("b"), { left: across(run.threshold) }) : null;
    rows.push(tableRow({ class: kind }, cell({}, name), cell({ class: "lane" }, el("div", { class: "track" }, bar, mark)), cell({ class: "number" }, figure), cell({ class: "why" }, why)));
  };
  const byScore = run.gate === "score", reaches = run.waits ? "among the first runs, which pass only if they agree" : `${value(run) >= run.threshold ? "reaches" : "is below"} the threshold of ${thresholdOf(run)}`;
  let sum = 0;
  run.dimensions.forEach(([figure, weight, added, why], at) => {
    row(DIMENSIONS[at] ?? "", sum, sum + (added ?? 0), signed(added), `${fixed(figure)} × ${fixed(weight)}: ${why}`, null, byScore);
    sum += added ?? 0;
  });
  for (const [name, before, after, why] of run.rules) row(`rule ${name}`, before ?? 0, after ?? 0, signed((after ?? 0) - (before ?? 0)), why, null, byScore);
  row("score", 0, run.score ?? 0, byScore ? gated(run) : fixed(run.score), byScore ? reaches : "", "total", byScore);
  if (run.worth !== null) row("worth", 0, run.worth, byScore ? fixed(run.worth) : gated(run), `confidence ${fixed(run.confidence_of_worth)} × (0.75 + novelty / 4)${byScore ? "" : "; " + reaches}`, "total", !byScore);
  return table("How the score adds up", "waterfall", [], rows);
}

/* ---- what else is known of it ---- */

function runLink(id) {
  const other = byId.get(id);
  return other ? el("button", { class: "link", onclick: () => openRun(other) }, short(other, 160)) : el("code", {}, `${id ?? "a vector without a key"} (not on this page)`);
}

function facts(run) {
  return fields([
    ["Nearest run", run.nearest ? [`similarity ${fixed(run.nearest[1])}: `, runLink(run.nearest[0])] : `none: ${run.novelty_source}`],
    ["Twin of", run.twin ? [`${run.twin[1]}; that one was kept, and this one is not surer: `, runLink(run.twin[0])] : null],
    ["Replaced by", run.replaced_by ? [`a run ${run.replaced_by[1]}: `, runLink(run.replaced_by[0])] : null],
    ["Agreement", run.agreement],
    ["Flags", run.flags.length ? run.flags.map(flag => el("div", {}, flag)) : null],
    ["Basis", run.basis],
    ["Shown to it", run.shown && run.shown.map(([id, text]) => el("div", {}, text, id ? [": ", runLink(id)] : ""))],
    ["Credit", run.credit],
    ["Planted", run.planted],
    ["Outcome", run.outcome],
    ...["took", "tokens", "cost"].map(name => [name[0].toUpperCase() + name.slice(1), linesOf(run, name)]),
    ["Redacted", listed(run.redactions) || "nothing"],
    ["Left out", listed(run.dropped)],
    ["Weights", `profile ${run.profile}`],
    ...Object.entries(run.keys).map(([name, text]) => [name[0].toUpperCase() + name.slice(1), text]),
    ["Privacy", run.privacy],
    ["Steps kept until", run.kept_until === null ? null : time(run.kept_until)],
  ]);
}

function linesOf(run, label) {
  const texts = run.usage.filter(one => one[0] === label).map(one => one[1]);
  return texts.length ? texts.map(text => el("div", {}, text)) : null;
}

function verdictList(run) {
  if (!run.verdicts.length) return el("p", { class: "muted" }, "None.");
  return el("ul", {}, run.verdicts.map(([at, success, confidence, note, source]) => el("li", {}, `${at === null ? "" : time(at) + ", "}${source}: `
    + `${success === null ? "success not stated" : success ? "success" : "failure"}${confidence === null ? "" : `, confidence ${fixed(confidence)}`}${note ? `: ${note}` : ""}`)));
}

/* ---- steps ---- */

const missing = run => run.withheld ? "Not kept, because the run was withheld." : "The store does not have the trace of this run.";

function stepsOf(trace) {
  const details = trace.steps.map(stepDetails), left = trace.left_out;
  const toggle = () => { const open = !details.every(one => one.open); for (const one of details) one.open = open; };
  return [el("h3", {}, `Steps (${amount(details.length + left)})`), el("p", {}, el("button", { onclick: toggle }, "Open or close all")), ...details,
    left ? el("p", { class: "cut" }, `${count(left, "more step")} left out`) : ""];
}

function stepDetails([type, tool, text, input, latency, tries], at) {
  const first = whole(input ?? text).replace(/\s+/g, " ").slice(0, 120);
  const facts = [latency === null ? "" : `${amount(latency)} ms`, tries > 1 ? `tried ${tries} times` : ""].filter(Boolean).join(", ");
  return el("details", { class: "step" },
    el("summary", {}, `${at} ${STEPS[type] ?? type}${tool ? ` ${tool}` : ""}`, el("span", { class: "muted" }, first)),
    input === null ? null : el("pre", { class: "mono text" }, textNodes(input)),
    text === "" ? null : el("p", { class: "text" }, textNodes(text)),
    facts ? el("p", { class: "muted text" }, facts) : null);
}
