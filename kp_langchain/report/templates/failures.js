/* ---- failures that are alike, and one verdict for a group ---- */

const withoutVerdict = group => group.unjudged.map(at => runs[at]).filter(run => label(run) === null);

// Shows the groups of a domain. The one that is asked about stays open, unless all its runs have a verdict.
function showFailures({ failures }, section) {
  if (!failures) return;
  section.replaceChildren(el("h3", {}, "Failures that are alike"), el("p", {}, failures.text),
    failures.nearest ? el("p", { class: "muted" }, `The nearest may be chance: ${failures.nearest}.`) : "",
    failures.groups.length ? el("ol", { class: "groups" }, failures.groups.map((group, at) => groupItem(group, () => section.querySelectorAll("[role=status]")[at]))) : "");
}

function groupItem(group, status) {
  const own = [...group.failed, ...group.unjudged].map(at => runs[at]), open = withoutVerdict(group);
  return el("li", {}, el("strong", {}, group.title), el("p", {}, `${group.rate}.`),
    el("p", { class: "muted" }, "Example: ", runLink(runs[group.example].id), `, ${group.why}`),
    group.otherwise ? el("p", { class: "muted" }, `Otherwise: ${group.otherwise}.`) : null,
    open.length ? el("p", { class: "muted" }, `No verdict: ${count(open.length, "run")}.`) : null,
    el("div", { class: "choices" }, el("button", { onclick: () => openRun(own[0], own) }, own.length === 1 ? "Go through its run" : `Go through its ${amount(own.length)} runs`),
      open.length ? askButton(group, open, status) : null),
    el("p", { role: "status", tabindex: -1, class: "muted" }));
}

// Returns a button that asks for one verdict on all runs of a group without one.
function askButton(group, open, status) {
  const number = count(open.length, "run"), start = el("button", { "aria-expanded": "false" }, `One verdict for ${number} without`);
  const give = success => answerAll(group, open, success, status);
  const close = () => { choices.hidden = true; start.setAttribute("aria-expanded", "false"); start.focus(); };
  const who = open.length === 1 ? "It" : "All", yes = el("button", { onclick: () => give(true) }, `${who} succeeded`, el("kbd", {}, "y"));
  const choices = el("div", { class: "choices", role: "group", "aria-label": `Verdict on ${number}`, hidden: true },
    yes, el("button", { onclick: () => give(false) }, `${who} failed`, el("kbd", {}, "n")), el("button", { onclick: close }, "Cancel", el("kbd", {}, "Esc")));
  start.addEventListener("click", () => { choices.hidden = false; start.setAttribute("aria-expanded", "true"); yes.focus(); });
  choices.addEventListener("keydown", event => {
    const keys = { y: () => give(true), n: () => give(false), Escape: close };
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  return [start, choices];
}

async function answerAll(group, open, success, status) {
  if (isSending) return; // a key pressed again must not answer twice
  const given = { success, note: `given to a group: ${group.title}` }, done = [];
  let failure = "";
  isSending = true;
  try {
    for (const run of open) {
      if (data.stores_verdicts) await send(run, given);
      answers.set(run.id, given);
      done.push(run);
    }
  } catch (error) { failure = `; then not stored: ${error.message}`; } finally { isSending = false; }
  changed();
  const line = status();
  line.append(`${success ? "Success" : "Failure"} ${data.stores_verdicts ? "stored" : "noted"} for ${count(done.length, "run")}${failure}. `,
    data.stores_verdicts ? "" : el("button", { class: "link", onclick: () => takeBack(done, status) }, "Take back"));
  line.focus();
}

function takeBack(done, status) {
  for (const run of done) answers.delete(run.id);
  changed();
  status().append(`Taken back for ${count(done.length, "run")}.`);
  status().focus();
}
