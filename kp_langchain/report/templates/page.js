/* ---- keys, and the beginning ---- */

const DOMAINS_NAMED = 3; // in a notice

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
  const isComparing = dialog.classList.contains("wide");
  const keys = { j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1) };
  if (!isComparing) Object.assign(keys, { y: () => answer(true), n: () => answer(false), u: undo, c: markOrCompare, o: () => byElementId("note").focus() });
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

dialog.addEventListener("close", () => {
  const buttons = [...document.querySelectorAll("[data-id]")];
  (buttons.find(button => button.dataset.id === drawer.run?.id) ?? buttons[0] ?? byElementId("search")).focus();
  drawer.run = null;
  writeLink();
});

dialog.addEventListener("click", event => { if (event.target === dialog && event.offsetX < 0) dialog.close(); });

window.addEventListener("beforeunload", event => { if (isUnsaved) event.preventDefault(); });

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
  window.addEventListener("hashchange", readLink);
}

function introduce() {
  byElementId("about").textContent = `${amount(runs.length)} of ${data.total} in ${data.store}, as of ${time(data.made_at)}. The texts are redacted.`;
  byElementId("notices").append(...[
    [data.private_runs, `${amount(data.private_runs)} of the runs keep names, addresses and other identifiers: at their privacy level, private, only secrets are removed.`],
    [data.damaged_traces, `${amount(data.damaged_traces)} of the stored traces cannot be read. Their runs have no steps here.`],
  ].filter(([number]) => number > 0).map(([, text]) => el("p", { class: "notice" }, text)), ...missingBases());
}

// Returns a notice of the domains whose decisions rest on a formula alone, for each way to change that.
function missingBases() {
  const lacking = data.domains.filter(domain => !domain.has_basis);
  return [...new Set(lacking.map(domain => domain.basis))].map(text => {
    const names = lacking.filter(domain => domain.basis === text).map(domain => domain.name), more = names.length - DOMAINS_NAMED;
    return el("p", { class: "notice" }, `${names.slice(0, DOMAINS_NAMED).join(", ")}${more > 0 ? ` and ${amount(more)} more` : ""}: ${text}.`);
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
  introduce();
  startDomains();
  fillFilters();
  showAnswers();
  listen();
  byElementId("main").hidden = false;
  await readLink();
  document.documentElement.dataset.ready = "true";
}

begin().catch(error => { byElementId("state").textContent = `The page cannot be shown: ${error.message}`; });
