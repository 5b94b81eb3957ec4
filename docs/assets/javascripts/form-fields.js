/* Labelled fields, tables and SVG shapes for the interactive pages; every field calls `changed` when its value does. */

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick" || key === "oninput") made[key] = value;
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// The width of a picture's coordinates: on a phone fewer, so that its text keeps its size.
export const PICTURE_WIDTH = globalThis.innerWidth < 600 ? 400 : 720;

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function labelled(id, text, field, ...after) {
  return element("div", { class: "field" }, element("label", { for: id }, text), field, ...after);
}

/* A field is { node, value(), raw(), set(raw), takes(raw) }: value() is what a page computes with, raw() the text that the address of a page keeps. */

// options: [value, text] pairs.
export function choice(id, text, options, chosen, changed) {
  const field = element("select", { id, oninput: changed });
  for (const [value, shown] of options) field.append(element("option", { value, selected: value === chosen }, shown));
  return { node: labelled(id, text, field), value: () => field.value, raw: () => field.value, set: (value) => { field.value = value; },
    takes: (value) => [...field.options].some((option) => option.value === value) };
}

// A number, or null if the field is empty and `optional`; NaN if it is not a number, as while only a sign or an "e" stands in it.
export function number(id, text, value, { min = 0, max = null, step = 1, optional = false }, changed) {
  const field = element("input", { id, type: "number", value, min, max, step, oninput: changed, inputmode: "decimal" });
  return { node: labelled(id, text, field), value: () => (field.value === "" ? (optional && !field.validity.badInput ? null : NaN) : Number(field.value)),
    raw: () => field.value, set: (raw) => { field.value = raw; },
    takes: (raw) => (raw === "" ? optional : Number.isFinite(Number(raw)) && Number(raw) >= min && (max === null || Number(raw) <= max)) };
}

// A line of text.
export function text(id, label, placeholder, changed, value = "") {
  const field = element("input", { id, type: "text", placeholder, value, oninput: changed, spellcheck: "false", autocomplete: "off", autocapitalize: "off" });
  return { node: labelled(id, label, field), value: () => field.value, raw: () => field.value, set: (raw) => { field.value = raw; }, takes: (raw) => raw.length <= 200 };
}

// A box that is ticked or not: true or false, "yes" or "" in an address.
export function check(id, label, ticked, changed) {
  const field = element("input", { id, type: "checkbox", oninput: changed, checked: ticked });
  return { node: element("div", { class: "field tick" }, field, element("label", { for: id }, label)), value: () => field.checked,
    raw: () => (field.checked ? "yes" : ""), set: (raw) => { field.checked = raw === "yes"; }, takes: (raw) => ["yes", ""].includes(raw) };
}

// A slider from `min` to `max` that starts at `value`, all three positions; meaning(position) is its value, position(value) where that lies, and said(value) what
// is shown.
export function slider(id, text, { min, max, step = 1, value, meaning = (at) => at, position = (found) => found, said = String }, changed) {
  const shown = element("output", { for: id });
  const field = element("input", { id, type: "range", min, max, step, value });
  const show = () => {
    shown.textContent = said(meaning(Number(field.value)));
    field.setAttribute("aria-valuetext", shown.textContent);
  };
  field.oninput = () => { show(); changed(); };
  show();
  return { node: labelled(id, text, field, shown), value: () => meaning(Number(field.value)), raw: () => String(meaning(Number(field.value))),
    set: (raw) => { field.value = position(Number(raw)); show(); },
    takes: (raw) => { const at = raw === "" ? NaN : position(Number(raw)); return Number.isInteger((at - min) / step) && at >= min && at <= max; } };
}

// A slider over the powers of two from 2^from to 2^to.
export function powerSlider(id, text, from, to, start, changed) {
  const said = (value) => value.toLocaleString("en");
  return slider(id, text, { min: from, max: to, value: start, meaning: (at) => 2 ** at, position: Math.log2, said }, changed);
}

export function table(caption, heads, rows) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map(([first, ...rest]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((text) => element("td", {}, text))));
  const made = element("table", { class: "facts-table" }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": caption }, made);
}

export async function loadTables() {
  const answer = await fetch(new URL("hardware.json", import.meta.url));
  if (!answer.ok) throw new Error(`hardware.json could not be loaded (${answer.status}).`);
  return answer.json();
}

// Three significant figures with a unit that suits.
export function quantity(value, units) {
  for (const [size, unit] of units) {
    if (Math.abs(value) >= size) return `${figures(value / size)} ${unit}`;
  }
  const [size, unit] = units.at(-1);
  return `${figures(value / size)} ${unit}`;
}

export function figures(value) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(digits, 2), maximumFractionDigits: Math.min(digits, 6) });
}

export const bytes = (value) => (value === 0 ? "–" : sized(value));
const sized = (value) => quantity(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]]);
export const time = (milliseconds) => quantity(milliseconds, [[1e3, "s"], [1, "ms"], [1e-3, "µs"]]);
