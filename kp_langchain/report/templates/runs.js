/* ---- the table of runs: its filters, its order, and the link that leads back to them ---- */

const PAGE_ROWS = 100;
const CHOICES = ["domain", "decision", "rule", "tool"], TICKS = ["recovered", "withheld"];
const IN_LINK = ["search", "in_steps", ...CHOICES, "verdict", ...TICKS, "sort"];
const SORTS = { // by what to sort, ascending
  newest: run => run.index, oldest: run => -run.index, // the store's order, also of runs of one time
  best: run => -value(run), worst: run => value(run),
  new: run => -novelty(run), known: run => novelty(run),
};
const FILTERS = {
  domain: run => run.domain, decision: run => run.decision, rule: run => run.rules.map(rule => rule[0]), tool: run => run.tools,
  recovered: run => run.recoveries > 0, withheld: run => run.withheld !== null,
};
const VERDICTS = { "": () => true, none: one => one === null, some: one => one !== null, true: one => one === true, false: one => one === false };
const DECISIONS = { kept: "kept", below_threshold: "below the threshold", twin: "twin of a kept run" };

let shown = [], page = 0, hasStepTexts = false;

const wordsOf = run => (run.words ??= [run.id, whole(run.objective), run.domain, ...run.tools, ...Object.values(run.keys)].join("\n").toLowerCase());

// Reads the texts of the steps of all runs, as far as the page has them, so that they can be searched.
async function readStepTexts() {
  for (const run of runs) {
    const trace = await traceOf(run), steps = trace?.steps ?? [];
    run.stepWords = [whole(trace?.result), ...steps.map(([, , text, input]) => `${whole(text)}\n${whole(input)}`)].join("\n").toLowerCase();
  }
  hasStepTexts = true;
}

function fillFilters() {
  for (const id of CHOICES) {
    const numbers = new Map();
    for (const run of runs) for (const name of new Set([FILTERS[id](run)].flat())) numbers.set(name, (numbers.get(name) ?? 0) + 1);
    const most = [...numbers].sort((one, other) => other[1] - one[1]).slice(0, 300);
    byElementId(id).append(...most.map(([name, number]) => el("option", { value: name }, `${DECISIONS[name] ?? name} (${amount(number)})`)));
  }
  byElementId("filters").hidden = runs.length === 0;
  on("filters", "input", filter);
  on("fold", "click", () => byElementId("fold").setAttribute("aria-expanded", String(byElementId("fold").getAttribute("aria-expanded") === "false")));
  on("clear", "click", () => { clearFilters(); filter(); byElementId("search").focus(); });
}

function clearFilters() {
  for (const id of IN_LINK.filter(id => id !== "sort")) setField(id, "");
}

function showRunsOf(domain) {
  clearFilters();
  byElementId("domain").value = domain;
  filter();
  byElementId("runs-title").scrollIntoView();
  document.querySelector("[data-id]")?.focus({ preventScroll: true });
}

async function filter() {
  const inSteps = byElementId("in_steps").checked;
  if (inSteps && !hasStepTexts) await readStepTexts();
  const words = byElementId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = CHOICES.filter(id => byElementId(id).value !== ""), ticks = TICKS.filter(id => byElementId(id).checked);
  const has = (run, word) => wordsOf(run).includes(word) || (inSteps && run.stepWords.includes(word));
  const fits = VERDICTS[byElementId("verdict").value];
  shown = runs.filter(run => words.every(word => has(run, word)) && chosen.every(id => [FILTERS[id](run)].flat().includes(byElementId(id).value))
    && ticks.every(id => FILTERS[id](run)) && fits(label(run)));
  const key = SORTS[byElementId("sort").value];
  shown.sort((one, other) => key(one) - key(other));
  page = 0;
  const folded = chosen.length + ticks.length + (byElementId("verdict").value !== "");
  byElementId("fold").textContent = folded ? `Filters (${folded})` : "Filters";
  byElementId("clear").hidden = !(folded || words.length);
  showRows();
  writeLink();
}

/* ---- the link: #domain=finance&run=... ---- */

const isTick = id => byElementId(id).type === "checkbox";
const fieldValue = id => isTick(id) ? (byElementId(id).checked ? "yes" : "") : byElementId(id).value;

// Returns whether the field can have this value.
function setField(id, setting) {
  const field = byElementId(id);
  if (isTick(id)) field.checked = setting !== "";
  else field.value = setting;
  if (field.selectedIndex !== -1) return true;
  field.selectedIndex = 0;
  return false;
}

function writeLink() {
  const link = new URLSearchParams(IN_LINK.map(id => [id, fieldValue(id)]).filter(pair => pair[1] !== "" && pair[1] !== "newest"));
  if (drawer.run) link.set("run", drawer.run.id.replace("kp:trace:", ""));
  const [address] = location.href.split("#"), hash = link.toString();
  try {
    history.replaceState(null, "", hash ? `${address}#${hash}` : address);
  } catch { /* Safari allows a hundred in ten seconds; the next one is written again */ }
}

async function readLink() {
  const link = new URLSearchParams(location.hash.slice(1)), id = link.get("run");
  const missing = IN_LINK.filter(name => !setField(name, link.get(name) ?? (name === "sort" ? "newest" : ""))).map(name => `${name} ${link.get(name)}`);
  const run = byId.get(id) ?? byId.get(`kp:trace:${id}`);
  if (id !== null && !run) missing.push(`run ${id}`);
  byElementId("state").textContent = missing.length ? `The link asks for what this page does not have: ${missing.join(", ")}.` : "";
  if (run) drawer.run = run; // so that the link keeps it
  await filter();
  if (run) openRun(run, shown); else dialog.close();
}

/* ---- the rows ---- */

// Says in a few words what became of a run.
function result(run) {
  const withheld = run.withheld === null ? "" : ", withheld";
  if (isKept(run)) return `kept${withheld}`;
  if (run.veto) return `veto: ${run.veto}${withheld}`;
  if (run.twin) return `repeats ${shortId(run.twin[0])}${withheld}`;
  if (run.replaced_by) return `replaced by ${shortId(run.replaced_by[0])}${withheld}`;
  if (run.waits) return `among the first runs${withheld}`;
  return (run.lost ? `${run.lost[0]} −${fixed(run.lost[1])}` : "below the threshold") + withheld;
}

function runsHeading(name, down, up, attributes = {}) {
  const sort = byElementId("sort"), order = { [down]: "descending", [up]: "ascending" }[sort.value];
  const press = async () => {
    sort.value = sort.value === down ? up : down;
    await filter();
    document.querySelector(`.runs [data-sort="${name}"]`).focus();
  };
  return sortHeading(name, order, press, attributes);
}

function showRows() {
  const rows = shown.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS), byTime = ["newest", "oldest"].includes(byElementId("sort").value);
  byElementId("count").textContent = shown.length === runs.length ? count(runs.length, "run") : `${amount(shown.length)} of ${count(runs.length, "run")}`;
  const head = [runsHeading("Time", "newest", "oldest"), heading("Objective"), heading("Domain"),
    runsHeading(runs.some(run => run.gate === "worth") ? "Score or worth" : "Score", "best", "worst"),
    runsHeading("Novelty", "new", "known", { class: "novelty number" }), heading("Kept, or lost most by")];
  byElementId("table").replaceChildren(rows.length ? table("Runs", "runs", head, rows.flatMap((run, at) => {
    const isNewDay = byTime && (at === 0 || date(run.at) !== date(rows[at - 1].at));
    return isNewDay ? [tableRow({ class: "day" }, cell({ colspan: head.length }, day(run.at))), runRow(run, byTime)] : [runRow(run, byTime)];
  })) : el("p", { class: "empty" }, runs.length ? "No run matches. Clear the search or a filter." : "There are no runs yet."));
  showPages();
}

function runRow(run, byTime) {
  const verdict = label(run);
  return tableRow({ class: isKept(run) ? "passed" : null, onclick: () => openRun(run, shown) },
    cell({ class: "time" }, byTime ? clock(run.at) : time(run.at)),
    cell({ class: "objective" }, el("div", {}, el("button", { class: "link", "data-id": run.id, "aria-haspopup": "dialog" }, whole(run.objective)),
      verdict === null ? null : el("span", { class: "muted small" }, hidden("verdict: "), verdict ? "✓ success" : "✗ failure"))),
    cell({ class: "of" }, run.domain),
    cell({}, el("span", { class: "score", title: `${run.gate}, threshold ${thresholdOf(run)}` }, track(value(run), run.threshold), gated(run))),
    cell({ class: "novelty number" }, fixed(run.dimensions[1]?.[0])), cell({ class: "result" }, result(run)));
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
