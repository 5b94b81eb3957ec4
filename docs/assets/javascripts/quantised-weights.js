/* One weight matrix and its codes: the reader chooses a format, the size of groups and the size of an outlier. The rules are weight-codes.js's. */

import { choice, element, figures, powerSlider, shape, table } from "./form-fields.js";
import { encode, FORMATS, relativeError, sampleMatrix } from "./weight-codes.js";

const ROWS = 8, COLUMNS = 64, OUTLIER = 21, CELL = 12;

function picture(matrix, coded, groups, chosen, select) {
  const step = Math.max(...matrix.flat().map((number, i) => Math.abs(number - coded.back.flat()[i]))) || 1;
  const svg = shape("svg", { viewBox: `0 0 ${COLUMNS * CELL} ${ROWS * CELL + 4}`, role: "img",
    "aria-label": "The matrix; a darker cell has a larger error. The table below has the figures of the chosen row." });
  matrix.forEach((row, r) => row.forEach((number, c) => {
    const error = Math.abs(number - coded.back[r][c]);
    const cell = shape("rect", { x: c * CELL + 1, y: r * CELL + 1, width: CELL - 2, height: CELL - 2,
      style: `fill: var(--cache); fill-opacity: ${(0.06 + 0.94 * error / step).toFixed(3)}; cursor: pointer` });
    cell.append(shape("title", {}, `row ${r}, column ${c}: ${number.toPrecision(3)} becomes ${coded.back[r][c].toPrecision(3)}`));
    cell.addEventListener("click", () => select(r));
    svg.append(cell);
  }));
  for (let c = groups; c < COLUMNS; c += groups) svg.append(shape("line", { x1: c * CELL, x2: c * CELL, y1: 0, y2: ROWS * CELL, class: "roof", style: "stroke-width: 1" }));
  svg.append(shape("rect", { x: 0.5, y: chosen * CELL + 0.5, width: COLUMNS * CELL - 1, height: CELL - 1, style: "fill: none; stroke: var(--weights); stroke-width: 2" }));
  return element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Errors of the matrix" }, svg);
}

function rowTable(row, matrix, coded, size) {
  const rows = [];
  for (let first = 0; first < COLUMNS; first += size) {
    const part = (numbers) => numbers.slice(first, first + size);
    rows.push([`${first} to ${first + size - 1}`, coded.scales[row][first / size].toPrecision(3), part(coded.codes[row]).slice(0, 16).join(" ") + (size > 16 ? " ..." : ""),
      `${(100 * relativeError([part(matrix[row])], [part(coded.back[row])])).toFixed(2)} %`]);
  }
  return table(`Row ${row}: numbers that share a scale`, ["inputs", "scale", "codes, the first 16", "error"], rows);
}

function comparison(matrix, groups) {
  const rows = Object.entries(FORMATS).map(([name, format]) => {
    const coded = encode(matrix, name, groups), numbers = ROWS * COLUMNS;
    return [format.text, `${figures((8 * coded.bytes) / numbers)} bits`, `${coded.bytes.toLocaleString("en")} of ${(2 * numbers).toLocaleString("en")}`,
      `${(100 * relativeError(matrix, coded.back)).toFixed(2)} %`];
  });
  return table("All formats at this size of groups", ["format", "per number", "bytes, of bfloat16's", "error"], rows);
}

function start(place) {
  let chosen = 0;
  const shown = element("div", {}), said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    const name = fields.format.value(), format = FORMATS[name], groups = fields.groups.value(), times = fields.outlier.value();
    const matrix = sampleMatrix(ROWS, COLUMNS, OUTLIER, times), size = format.grouped ? groups : COLUMNS, coded = encode(matrix, name, groups);
    const others = matrix.map((row) => row.filter((_, c) => c !== OUTLIER)), back = coded.back.map((row) => row.filter((_, c) => c !== OUTLIER));
    said.textContent = `${figures((8 * coded.bytes) / (ROWS * COLUMNS))} bits per number with scales, ` +
      `relative error ${(100 * relativeError(matrix, coded.back)).toFixed(2)} %; without column ${OUTLIER}, ${(100 * relativeError(others, back)).toFixed(2)} %.`;
    shown.replaceChildren(picture(matrix, coded, size, chosen, (row) => { fields.row.set(String(row)); chosen = row; show(); }), rowTable(chosen, matrix, coded, size), comparison(matrix, groups));
  };
  const fields = {
    format: choice("format", "Format", Object.entries(FORMATS).map(([name, { text }]) => [name, text]), "int4", show),
    groups: powerSlider("groups", "Inputs that share a scale (4-bit formats)", 3, 6, 5, show),
    outlier: powerSlider("outlier", `Size of column ${OUTLIER}, in times`, 0, 6, 3, show),
    row: choice("row", "Row in the table", Array.from({ length: ROWS }, (_, r) => [String(r), String(r)]), "0", () => { chosen = Number(fields.row.value()); show(); }),
  };
  place.replaceChildren(element("div", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), said, shown);
  show();
}

const place = document.getElementById("quantised-weights");
if (place) start(place);
