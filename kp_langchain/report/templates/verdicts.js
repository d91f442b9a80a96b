/* ---- verdicts that are given on this page ---- */

const answers = new Map(); // by trace id: {success, note}
const undoable = []; // {id, before}: what `undo` takes back, the latest last
let isUnsaved = false, isSending = false;

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
    change = `: ${run.gate} ${fixed(scored)} to ${gated(run)}, ${result(run)}`;
  }
  answers.set(run.id, given);
  undoable.push({ id: run.id, before });
  changed();
  const next = advance && byElementId("advance").checked && drawer.run === run;
  if (!(next && step(1)) && drawer.run === run) showRun(run);
  say(`${success ? "Success" : "Failure"} ${data.stores_verdicts ? "stored" : "noted"} for run ${shortId(run.id)}${change}. Undo: u.`);
}

function undo() {
  const last = undoable.pop();
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
  showDomains();
}

function showAnswers() {
  byElementId("answers").hidden = answers.size === 0;
  byElementId("answered").textContent = `${count(answers.size, "verdict")} ${data.stores_verdicts ? "stored" : "given on this page"}`;
  for (const id of ["download", "then"]) byElementId(id).hidden = data.stores_verdicts;
}

function download() {
  const lines = [...answers].map(([id, { success, note }]) => JSON.stringify(note ? { trace_id: id, success, note } : { trace_id: id, success }));
  const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  el("a", { href: url, download: "verdicts.jsonl" }).click();
  isUnsaved = false;
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
