// Predictions of a lesson: guesses are locked before the answer opens, shown beside it, and kept in this browser only.
import { parseQuantity, short, verdict } from "./prediction-values.js";

const KEY = `minllm predictions ${location.pathname}`;

function stored() {
  try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; }
}

function store(guesses) {
  try { localStorage.setItem(KEY, JSON.stringify(guesses)); } catch { /* private windows may refuse: the guesses last until the page closes */ }
}

const forms = [...document.querySelectorAll("form.prediction")];
const answers = [...document.querySelectorAll(".prediction-answer")];
let guesses = stored();  // {name: a number, a choice or null}, of locked forms

const entries = (form) => [...form.querySelectorAll("input, select")];
const isLocked = (form) => entries(form).every(({ name }) => name in guesses);

/** The guess of a field: a number, a choice, null for an empty field, undefined for anything else. */
function guessOf(entry) {
  const typed = entry.value.trim();
  if (typed === "") return null;
  return entry.tagName === "SELECT" ? typed : parseQuantity(typed) ?? undefined;
}

function lock(form) {
  let wrong = null;
  for (const entry of entries(form)) {
    const bad = guessOf(entry) === undefined;
    entry.closest("p").querySelector(".prediction-complaint").textContent = bad ? "This is not a number. Try 16e9, 1,024 or 33 MB." : "";
    entry.toggleAttribute("aria-invalid", bad);
    if (bad) wrong ??= entry;
  }
  if (wrong) return wrong.focus();
  for (const entry of entries(form)) guesses[entry.name] = guessOf(entry);
  store(guesses);
  draw();
}

function unlock(form) {
  for (const entry of entries(form)) { delete guesses[entry.name]; entry.value = ""; }
  store(guesses);
  draw();
}

function drawForm(form) {
  const locked = isLocked(form);
  for (const entry of entries(form)) {
    if (locked && entry.value === "" && guesses[entry.name] !== null) entry.value = guesses[entry.name];
    entry.disabled = locked;
  }
  form.querySelector("[type=submit]").hidden = locked;
  form.querySelector("[type=reset]").hidden = !locked;
  form.querySelector("[role=status]").textContent = locked ? "Locked. The answer further down shows them." : "";
}

function drawAnswer(answer) {
  const rows = [...answer.querySelectorAll("tr[data-name]")];
  const open = rows.every((row) => row.dataset.name in guesses);
  answer.querySelector("table").hidden = !open;
  answer.querySelector(".prediction-closed").hidden = open;
  for (const row of rows) {
    const guess = guesses[row.dataset.name] ?? null;
    const number = Number(row.dataset.actual);
    const cells = row.cells;
    cells[1].textContent = guess === null ? "?" : typeof guess === "number" ? short(guess) : guess;
    cells[cells.length - 1].textContent = verdict(guess, Number.isNaN(number) ? row.dataset.actual : number);
  }
}

function draw() {
  forms.forEach(drawForm);
  answers.forEach(drawAnswer);
}

for (const answer of answers) {
  const names = [...answer.querySelectorAll("tr[data-name]")].map((row) => row.dataset.name);
  const form = forms.find((one) => entries(one).some(({ name }) => names.includes(name)));
  const closed = document.createElement("p");
  closed.className = "prediction-closed";
  closed.innerHTML = 'The answer opens once your guesses are locked. <button type="button" class="md-button">To the questions</button> '
    + '<button type="button" class="md-button">Open it without guessing</button>';
  const [back, skip] = closed.querySelectorAll("button");
  back.addEventListener("click", () => form && (form.scrollIntoView({ block: "center" }), entries(form)[0].focus()));
  skip.addEventListener("click", () => { for (const name of names) guesses[name] ??= null; draw(); });
  answer.prepend(closed);
}
for (const form of forms) {
  form.addEventListener("submit", (event) => { event.preventDefault(); lock(form); });
  form.addEventListener("reset", (event) => { event.preventDefault(); unlock(form); });
}
draw();
