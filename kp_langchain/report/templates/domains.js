/* ---- the table of domains, and a card of each ---- */

const FIRST_DOMAINS = 12;
const BINS = 40;
const RUNS_PER_BAR = 8, FEWEST_BARS = 3, MOST_BARS = 12; // of a trend
const TOPS = [0.05, 0.1, 0.2, 0.3, 0.5, 1]; // where the axis of a trend may end

// What each column is called, what it is sorted by, and what it shows.
const DOMAIN_COLUMNS = [
  { name: "Domain", key: domain => domain.name, show: domain => domainButton(domain), kind: "name" },
  { name: "Runs", key: domain => domain.own.length, show: domain => [amount(domain.own.length), unit(domain.own.length === 1 ? " run" : " runs")], kind: "number total" },
  { name: "Kept", key: domain => keptShare(domain.own), show: domain => [percent(keptShare(domain.own)), unit(" kept")], kind: "number kept" },
  { name: "Right of kept", key: domain => rightShare(domain), show: domain => rightText(domain), kind: "number right", title: "Kept runs that succeeded, of those with a verdict" },
  { name: "Median", key: domain => domain.median - domain.threshold, show: domain => medianBar(domain), kind: "median", title: "The median of its scores or worths, and the threshold, which is the mark. Sorted by the distance of the two" },
  { name: "Trend", key: domain => domain.trend ? domain.trend.at(-1) - domain.trend[0] : -2, show: domain => trendBars(domain), kind: "trend", title: "The share of runs that it kept, over time. Sorted by how much that rose" },
  { name: "Costs most", key: domain => domain.parts[0]?.[3] ?? 0, show: domain => costText(domain), kind: "cost", title: "What lowers its scores most, on the average" },
];
const domainSort = { name: "Runs", direction: -1, showsAll: false };

const keptShare = some => some.filter(isKept).length / Math.max(1, some.length);
const labelsOf = some => some.map(label).filter(one => one !== null);
const rightShare = domain => { const labels = labelsOf(domain.own.filter(isKept)); return labels.length ? labels.filter(Boolean).length / labels.length : -1; };

function rightText(domain) {
  const labels = labelsOf(domain.own.filter(isKept));
  return labels.length ? [`${amount(labels.filter(Boolean).length)} of ${amount(labels.length)}`, unit(" right")] : el("span", { class: "muted" }, "no verdict");
}

function medianBar(domain) {
  return el("span", { class: "score" + (domain.median >= domain.threshold ? " passed" : "") }, track(domain.median, domain.threshold), fixed(domain.median), el("span", { class: "muted" }, hidden("threshold "), ` / ${fixed(domain.threshold)}`));
}

function costText(domain) {
  const [name, , , lost] = domain.parts[0] ?? [];
  return lost > 0 ? [unit("costs "), `${name} `, el("span", { class: "muted" }, fixed(lost))] : "–";
}

// Returns the share that was kept of each of some equal groups of runs, the oldest first.
function trendOf(own) {
  const groups = Math.min(MOST_BARS, Math.floor(own.length / RUNS_PER_BAR));
  if (groups < FEWEST_BARS) return null;
  const edges = Array.from({ length: groups + 1 }, (_, at) => Math.round(at * own.length / groups));
  return edges.slice(1).map((end, at) => keptShare(own.slice(edges[at], end))).reverse();
}

const topOf = trend => TOPS.find(top => top >= Math.max(...trend));
const trendText = trend => `from ${percent(trend[0])} to ${percent(trend.at(-1))}`;

function trendBars(domain) {
  if (!domain.trend) return "";
  return el("span", { class: "score" }, bars(domain.trend.map(share => share / topOf(domain.trend)), "spark"), el("span", { class: "muted" }, hidden(`from ${percent(domain.trend[0])} to `), percent(domain.trend.at(-1))));
}

function domainButton(domain) {
  return el("button", { class: "link", "aria-expanded": String(domain.isOpen), "aria-controls": domain.cardId, onclick: event => { event.stopPropagation(); unfold(domain, !domain.isOpen); } }, domain.name);
}

function startDomains() {
  data.domains.forEach((domain, at) => {
    Object.assign(domain, { own: runs.filter(run => run.domain === domain.name), isOpen: false, cardId: `card-${at}` });
    domain.row = tableRow({ class: "domain", onclick: () => unfold(domain, !domain.isOpen) });
    domain.below = tableRow({ id: domain.cardId, class: "below", hidden: true }, cell({ colspan: DOMAIN_COLUMNS.length }));
  });
  if (data.domains.length === 1) unfold(data.domains[0], true);
  showDomains();
}

function unfold(domain, isOpen) {
  domain.isOpen = isOpen;
  domain.card ??= startCard(domain);
  domain.below.hidden = !isOpen;
  domain.below.firstChild.replaceChildren(domain.card);
  domain.row.querySelector("button")?.setAttribute("aria-expanded", String(isOpen));
  domain.row.classList.toggle("open", isOpen);
}

function showDomains() {
  const { name, direction, showsAll } = domainSort, key = DOMAIN_COLUMNS.find(column => column.name === name).key;
  const inOrder = [...data.domains].sort((one, other) => {
    const [first, second] = [key(one), key(other)];
    return direction * (first < second ? -1 : first > second ? 1 : 0);
  });
  const rows = inOrder.slice(0, showsAll ? Infinity : FIRST_DOMAINS);
  for (const domain of rows) {
    domain.trend = trendOf(domain.own);
    domain.row.replaceChildren(...DOMAIN_COLUMNS.map(column => cell({ class: column.kind }, column.show(domain))));
    domain.card?.update();
  }
  const more = inOrder.length - rows.length;
  byElementId("domains").replaceChildren(rows.length
    ? table("Domains", "domains", DOMAIN_COLUMNS.map(domainHeading), rows.flatMap(domain => [domain.row, domain.below]))
    : el("p", { class: "empty" }, "Domains appear here once runs are scored."),
    more ? el("button", { class: "all", onclick: () => { domainSort.showsAll = true; showDomains(); } }, `Show ${count(more, "more domain")}`) : "");
}

function domainHeading(column) {
  const isSorted = column.name === domainSort.name;
  const press = () => {
    domainSort.direction = isSorted ? -domainSort.direction : column.kind === "name" ? 1 : -1;
    domainSort.name = column.name;
    showDomains();
    document.querySelector(`.domains [data-sort="${column.name}"]`).focus();
  };
  return sortHeading(column.name, isSorted ? (domainSort.direction < 0 ? "descending" : "ascending") : undefined, press, { class: column.kind, title: column.title });
}

/* ---- a card ---- */

function startCard(domain) {
  const { own, gate } = domain;
  const judged = own.filter(run => run.gate === gate);
  const bins = new Array(BINS).fill(0);
  for (const run of judged) bins[Math.min(BINS - 1, Math.floor(value(run) * BINS))]++;
  const most = Math.max(1, ...bins), heights = bins.map(number => number / most);
  const passing = bars(heights, "pass");
  const handle = el("div", { class: "handle", role: "slider", tabindex: 0, "aria-label": `Threshold of ${domain.name}`, "aria-valuemin": 0, "aria-valuemax": 1 });
  const chart = el("div", { class: "chart" }, bars(heights, ""), passing, handle);
  const readout = el("p", { class: "readout" });
  const setting = el("code"), proposal = el("p", { class: "proposal", hidden: true }, el("span", { class: "muted" }, "To use it, write this in kp.toml for the domain: "), setting,
    " ", el("button", { class: "link", onclick: () => { move(inForce); handle.focus(); } }, "Back to the threshold in force"));
  const inForce = domain.threshold;
  let threshold = inForce;

  const move = to => { threshold = to; update(); };
  const moveTo = to => move(Math.round(Math.min(1, Math.max(0, to)) * 100) / 100);
  function update() {
    const mayPass = judged.filter(run => run.withheld === null && run.veto === null && !isTwin(run)), passes = mayPass.filter(run => value(run) >= threshold);
    const labels = labelsOf(passes), figure = fixed(threshold), aside = judged.length - mayPass.length;
    const text = `${amount(passes.length)} of ${count(judged.length, "run")} would pass at ${figure} (${percent(passes.length / Math.max(1, judged.length))}). `
      + (labels.length ? `${amount(labels.filter(Boolean).length)} of the ${amount(labels.length)} with a verdict succeeded.` : "None of them has a verdict.")
      + (aside ? ` ${count(aside, "twin, vetoed or withheld run", "twins, vetoed and withheld runs")} cannot pass.` : "");
    place(handle, { left: across(threshold) });
    place(passing, { "clip-path": `inset(0 0 0 ${across(threshold)})` });
    handle.dataset.value = figure;
    handle.setAttribute("aria-valuenow", figure);
    handle.setAttribute("aria-valuetext", text);
    readout.textContent = text;
    setting.textContent = `${gate === "worth" ? "worth_threshold" : "threshold"} = ${figure}`;
    proposal.hidden = threshold === inForce;
  }
  const follow = event => { const box = chart.getBoundingClientRect(); moveTo((event.clientX - box.left) / box.width); };
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
    moveTo(threshold + steps[event.key]);
  });
  const others = own.length - judged.length;
  const alike = el("section", { class: "alike", "aria-label": `Failures of ${domain.name} that are alike` });
  const card = el("article", { class: "card" },
    el("div", {}, el("p", {}, domain.sentence.map((part, at) => at % 2 ? el("code", {}, part) : part)),
      domain.basis ? el("p", { class: domain.has_basis ? "muted" : "warn" }, `Basis: ${domain.basis}.`) : null, partsTable(domain), usageTable(domain), effectText(domain), notes(domain),
      el("p", {}, el("button", { onclick: () => showRunsOf(domain.name) }, own.length === 1 ? "Show its run" : `Show its ${amount(own.length)} runs`))),
    el("div", {}, el("p", { class: "muted small" }, `Runs by ${gate}. Drag the threshold to see what would pass.`, others ? ` ${count(others, "run")} that another gate judged are left out.` : ""),
      chart, el("div", { class: "scale", "aria-hidden": "true" }, ["0", "0.25", "0.5", "0.75", "1"].map(text => el("span", {}, text))), readout, proposal, trendChart(domain)), alike);
  card.update = () => { update(); showFailures(domain, alike); };
  card.update();
  return card;
}

function partsTable({ parts, rules }) {
  const most = Math.max(0.01, ...parts.map(part => part[3]), ...rules.map(rule => rule[3]));
  const row = (name, figures, cost) => tableRow({}, cell({}, name), figures,
    cell({ class: "costs" }, el("span", { class: "score" }, el("span", { class: "track" }, place(el("i"), { left: "0", width: across(cost / most) })), fixed(cost))));
  return table("What costs how much", "parts", [heading("part"), heading("median", { class: "number" }), heading("weight", { class: "number" }), heading("costs")], [
    ...parts.map(([name, median, weight, lost]) => row(name, [median, weight].map(figure => cell({ class: "number" }, fixed(figure))), lost)),
    ...rules.map(([name, of, passes, cost]) => row(`rule ${name}`, cell({ class: "muted number", colspan: 2 }, `${count(of, "run")}${passes ? `, ${count(passes, "pass", "passes")} lost` : ""}`), cost)),
  ]);
}

function usageTable({ usage, unpriced }) {
  if (!usage.length) return null;
  const head = [heading("A run of"), ...["tokens", "took", "cost"].map(name => heading(name, { class: "number" })),
    heading("spent for one", { class: "number", title: "What all runs together took, divided by the number of these" })];
  const note = unpriced ? el("p", { class: "muted small" }, `Cost is without ${count(unpriced, "run")} by models without a price.`) : null;
  return [note, table("What a run took, on the average", "parts", head, usage.map(([name, ...figures]) => tableRow({}, cell({}, name), figures.map(text => cell({ class: "number" }, text)))))];
}

// Says what examples do for all runs of the domain, also those that are not on the page.
function effectText({ effect }) {
  if (!effect) return null;
  const [proof, ...others] = effect.lines;
  return [el("p", { class: effect.is_stopped ? "warn" : "" }, `Examples, in all runs of the domain: ${proof}.`), others.map(line => el("p", { class: "muted small" }, line))];
}

function trendChart({ own, trend }) {
  if (!trend) return null;
  const top = topOf(trend), ends = [own.at(-1).at, own[0].at], form = date(ends[0]) === date(ends[1]) ? time : date;
  return [el("p", { class: "muted small" }, `Kept over time: ${trendText(trend)}`),
    el("div", { class: "axis" }, el("span", { class: "scale" }, el("span", {}, percent(top)), el("span", {}, "0")), bars(trend.map(share => share / top), "")),
    el("div", { class: "scale dates" }, ends.map(end => el("span", {}, form(end))))];
}

function notes({ own, redactions, redacted_runs, recovered, compared, vetoed }) {
  const number = Object.values(vetoed).reduce((sum, one) => sum + one, 0);
  const twins = own.filter(isTwin).length, withheld = own.filter(run => run.withheld !== null).length;
  return el("p", { class: "muted small" }, [
    redacted_runs ? `Redacted in ${count(redacted_runs, "run")}: ${listed(redactions)}.` : "Nothing was redacted.",
    twins ? `${count(twins, "twin")}.` : "",
    compared ? `${count(compared, "run")} compared with others of their task.` : "",
    number ? `${count(number, "run")} vetoed: ${listed(vetoed)}.` : "",
    recovered ? `${count(recovered, "run")} recovered from errors.` : "",
    withheld ? `${count(withheld, "run")} withheld.` : "",
  ].filter(Boolean).join(" "));
}
