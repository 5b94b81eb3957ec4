/* The page of results: all of its rows behind a filter. The tables are in the page; this hides the rows that nobody asked for. */

import { keepInAddress } from "./address-state.js";
import { choice, element, text } from "./form-fields.js";

const OPEN = 120; // tables open by themselves while no more rows than this match

// Whether a row's text has all of the words; a number is met by that number alone, so that "batch 1" is not "batch 16".
export function matches(rowText, words) {
  const lower = rowText.toLowerCase();
  const has = (word) => {
    if (!/^[\d.]+$/.test(word)) return lower.includes(word);
    return new RegExp(`(?<![\\d.])${word.replaceAll(".", "\\.")}(?![\\d.]*\\d)`).test(lower);
  };
  return words.toLowerCase().split(/[\s,]+/).filter(Boolean).every(has);
}

const plural = (count) => `${count.toLocaleString("en")} row${count === 1 ? "" : "s"}`;

function start(place) {
  const tables = [...document.querySelectorAll("details.result-rows")].map((node) => ({
    node, name: node.querySelector("summary").textContent.replace(/: \d+ rows?$/, ""), summary: node.querySelector("summary"),
    rows: [...node.querySelectorAll("tbody tr")].map((row) => ({ row, text: row.textContent })),
  }));
  // The headings above the tables; one without a table that is shown goes too.
  const sections = new Map();
  for (const table of tables) {
    let title = table.node;
    while (title.tagName !== "H3") title = title.previousElementSibling;
    sections.set(title, [...(sections.get(title) ?? []), table]);
  }
  const all = tables.reduce((sum, { rows }) => sum + rows.length, 0), said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    const benchmark = fields.benchmark.value(), words = fields.words.value(), asked = Boolean(benchmark || words.trim());
    let found = 0;
    for (const table of tables) {
      table.found = 0;
      for (const one of table.rows) {
        const shown = (!benchmark || benchmark === table.node.id) && matches(`${table.name} ${one.text}`, words);
        one.row.hidden = !shown;
        table.found += shown;
      }
      found += table.found;
    }
    for (const table of tables) {
      table.node.hidden = table.found === 0;
      if (asked) table.node.open = table.found > 0 && found <= OPEN;
      table.summary.textContent = `${table.name}: ${table.found < table.rows.length ? `${table.found} of ` : ""}${plural(table.rows.length)}`;
    }
    for (const [title, within] of sections) title.hidden = within.every(({ found }) => found === 0);
    said.textContent = !asked ? `${plural(all)}, each table closed until you open it or filter.` : found === 0 ? "No row has all of these words: use fewer of them, or choose all benchmarks."
      : `${found.toLocaleString("en")} of ${plural(all)}.${found > OPEN ? " Open a table, or add a word." : ""}`;
    said.className = found ? "verdict" : "verdict bad";
    address.write();
  };
  const fields = {
    benchmark: choice("benchmark", "Benchmark", [["", "all"], ...tables.map(({ node, name }) => [node.id, name])], "", show),
    words: text("words", "Words that a row has", "for example 8b batch 16", show),
  };
  const address = keepInAddress(fields);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = typeof document === "undefined" ? null : document.getElementById("results-filter");
if (place) start(place);
