/* ---- two runs side by side ---- */

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

async function compare(left, right) {
  const [one, other] = await Promise.all([traceOf(left), traceOf(right)]);
  const pairs = align(one?.steps ?? [], other?.steps ?? []);
  const head = run => cell({}, el("button", { class: "link", onclick: () => openRun(run) }, short(run, 140)),
    el("p", { class: "muted" }, `${time(run.at)} · ${result(run)} · ${run.gate} ${gated(run)}, threshold ${thresholdOf(run)}`),
    [run.outcome, run.agreement, ...run.flags].filter(Boolean).map(text => el("p", { class: "muted" }, text)));
  const answered = (run, trace) => cell({ class: "text" }, textNodes(trace ? trace.result || "The run gave no answer." : missing(run)));
  Object.assign(drawer, { run: right, marked: null });
  byElementId("verdicts").hidden = true;
  say("");
  show(true, el("h2", { id: "drawer-title", tabindex: -1 }, "Two runs side by side"),
    el("p", {}, el("button", { onclick: () => openRun(right) }, "Back to the run")),
    el("p", { class: "sentence" }, whyDifferent(left, right)),
    table("The two runs", "sides", [heading("First"), heading("Second")], [tableRow({}, head(left), head(right)), tableRow({}, answered(left, one), answered(right, other))]),
    el("h3", {}, "What each part adds to the score"), differences(left, right), el("h3", {}, "Steps"),
    el("p", { class: "muted" }, pairs.some(pair => pair.same) ? "Calls of the same tool stand side by side, on a tinted ground." : "No call of a tool is common to the two runs."),
    table("Their steps", "sides", [], pairs.map(pair => tableRow({ class: pair.same ? "same" : null }, pair.steps.map(one => cell({}, one ? stepDetails(...one) : ""))))));
}

// Returns what each dimension and rule adds to the two scores.
function addedParts(left, right) {
  const rule = (run, name) => { const fired = run.rules.find(one => one[0] === name); return fired ? fired[2] - fired[1] : 0; };
  return [
    ...DIMENSIONS.map((name, at) => [name, left.dimensions[at]?.[2] ?? 0, right.dimensions[at]?.[2] ?? 0]),
    ...[...new Set([...left.rules, ...right.rules].map(one => one[0]))].map(name => [`rule ${name}`, rule(left, name), rule(right, name)]),
  ];
}

const isSame = difference => Math.abs(difference) < 0.005; // as it is shown

function whyDifferent(left, right) {
  const difference = right.score - left.score;
  if (isSame(difference)) return "Both have the same score.";
  const causes = addedParts(left, right).map(([name, one, other]) => [name, other - one])
    .filter(([, change]) => !isSame(change) && change > 0 === difference > 0)
    .sort((one, other) => Math.abs(other[1]) - Math.abs(one[1])).slice(0, 2).map(([name, change]) => `${name} (${signed(change)})`);
  return `The second scores ${fixed(Math.abs(difference))} ${difference > 0 ? "higher" : "lower"}${causes.length ? `, by ${causes.join(" and ")}` : ""}.`;
}

function differences(left, right) {
  const parts = addedParts(left, right), most = Math.max(0.01, ...parts.map(([, one, other]) => Math.abs(other - one)));
  // From the middle to the right if the second run has more, to the left if it has less.
  const bar = change => el("div", { class: "track" }, place(el("i", { class: change < 0 ? "minus" : "plus" }),
    { left: across(0.5 + Math.min(0, change / most / 2)), width: across(Math.abs(change) / most / 2) }), place(el("b"), { left: "50%" }));
  const row = (kind, name, one, other) => {
    const isKnown = one !== null && other !== null, change = other - one;
    return tableRow({ class: kind }, cell({}, name), cell({ class: "number" }, fixed(one)), cell({ class: "number" }, fixed(other)),
      cell({ class: "number" }, !isKnown ? "–" : isSame(change) ? "same" : signed(change)), cell({ class: "lane" }, isKnown && !kind ? bar(change) : null));
  };
  const head = [heading("Part"), ...["first", "second", "difference"].map(name => heading(name, { class: "number" })), heading(hidden("Difference as a bar"))];
  return table("What each part adds to the score", "differences", head, [
    ...parts.map(([name, one, other]) => row(null, name, one, other)), row("total", "score", left.score, right.score),
    left.worth !== null || right.worth !== null ? row("total", "worth", left.worth, right.worth) : "",
    ...left.took.map(([label, before, text], at) => tookRow(label, before, text, ...(right.took[at] ?? []).slice(1))),
  ]);
}

// Returns what both runs took of one thing, if either took any.
function tookRow(label, before, text, after = null, other = "") {
  if (!before && !after) return "";
  const change = before && after !== null ? `${after < before ? "−" : "+"}${percent(Math.abs(after / before - 1))}` : "";
  return tableRow({}, cell({}, label), ...[text || "–", other || "–", change].map(one => cell({ class: "number" }, one)), cell({ class: "lane" }));
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
