/* Coalescing and bank conflicts: the accesses of a warp while the reader edits the index. Rules: warp-traffic.js; the index: index-expressions.js. */

import { keepInAddress } from "./address-state.js";
import { PICTURE_WIDTH, choice, element, number, shape, text } from "./form-fields.js";
import { parse } from "./index-expressions.js";
import { BANKS, BANK_BYTES, SECTOR_BYTES, banks, sectors, turns } from "./warp-traffic.js";

const NAMES = ["lane", "warp", "k"], LANES = 32, LARGEST = 2n ** 31n;
const EXAMPLES = {
  lane: "neighbouring elements", "lane + 3": "neighbours, not aligned", "2 * lane": "every second element", "31 - lane": "backwards", "64 * lane + k": "a column of a matrix of 64",
  "65 * lane + k": "the same with a padded row", "8 * (lane % 8) + lane // 8": "columns of a tile of 128 bytes per row, for 16 bytes",
  "8 * (lane % 8) + (lane // 8 ^ lane % 8)": "the same tile, swizzled", k: "all lanes the same element", "lane % 4": "four elements",
};
const TYPES = { 1: "int8, fp8: 1 byte", 2: "bfloat16, float16: 2 bytes", 4: "float32, int32: 4 bytes", 8: "float64: 8 bytes", 16: "four float32: 16 bytes" };
const WIDTH = PICTURE_WIDTH, LEFT = 68, CELL = (WIDTH - LEFT - 2) / BANKS, ROW = 24, TOP = 20, MOST_ROWS = 33;

// [{ lane, index, start, width }] of a warp, or an Error that names the lane.
export function accessesOf(index, width, warp, k) {
  const compute = parse(index, NAMES);
  return Array.from({ length: LANES }, (_, lane) => {
    const found = compute({ lane: BigInt(lane), warp: BigInt(warp), k: BigInt(k) });
    if (found < 0n) throw new Error(`Lane ${lane} has the index ${found}, which lies before the array.`);
    if (found >= LARGEST) throw new Error(`Lane ${lane} has an index of ${LARGEST.toLocaleString("en")} or more, which no array here has.`);
    return { lane, index: Number(found), start: Number(found) * width, width };
  });
}

const hue = (lane) => `hsl(${(lane * 360) / LANES}, 55%, 72%)`;
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const lanesText = (lanes) => (lanes.length === LANES ? "all lanes" : `lane${lanes.length > 1 ? "s" : ""} ${lanes.join(", ")}`);

function cell(column, row, lanes, hint) {
  const x = LEFT + column * CELL, y = TOP + row * ROW;
  const parts = [shape("rect", { x: x + 0.5, y: y + 2, width: CELL - 1, height: ROW - 4, rx: 2, fill: hue(lanes[0]) }), shape("title", {}, hint)];
  if (CELL > 14) parts.push(shape("text", { class: "in-cell", x: x + CELL / 2, y: y + 16, "text-anchor": "middle" }, lanes.length > 1 ? `${lanes[0]}+` : String(lanes[0])));
  return shape("g", {}, ...parts);
}

function picture(rows, caption, drawn, more) {
  const shown = Math.min(rows.length, MOST_ROWS), height = TOP + ROW * shown + (more ? 20 : 4);
  const labels = rows.slice(0, shown).map((name, row) => shape("text", { x: LEFT - 6, y: TOP + ROW * row + 16, "text-anchor": "end" }, name));
  const heads = Array.from({ length: BANKS }, (_, column) => column).filter((column) => column % 4 === 0 || column === BANKS - 1).map((column) =>
    shape("text", { x: LEFT + (column + 0.5) * CELL, y: TOP - 6, "text-anchor": "middle" }, String(column)));
  const rest = more ? [shape("text", { x: LEFT, y: height - 6 }, more)] : [];
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": caption }, shape("title", {}, caption), ...heads, ...labels, ...drawn, ...rest);
}

// Lines of 128 bytes: each cell is a word of 4 bytes, and every touched sector has a frame.
function globalPicture(accesses) {
  const touched = sectors(accesses), perLine = 128 / SECTOR_BYTES, lines = [...new Set(touched.map((sector) => Math.floor(sector / perLine)))];
  const words = new Map();
  for (const { lane, start, width } of accesses) {
    for (let word = Math.floor(start / BANK_BYTES); word <= Math.floor((start + width - 1) / BANK_BYTES); word++) words.set(word, [...(words.get(word) ?? []), lane]);
  }
  const row = (word) => lines.indexOf(Math.floor(word / BANKS)), drawn = [];
  for (const [word, lanes] of words) if (row(word) < MOST_ROWS) drawn.push(cell(word % BANKS, row(word), lanes, `bytes ${BANK_BYTES * word} to ${BANK_BYTES * word + 3}: ${lanesText(lanes)}`));
  for (const sector of touched) {
    const line = lines.indexOf(Math.floor(sector / perLine)), wide = (SECTOR_BYTES / BANK_BYTES) * CELL;
    if (line < MOST_ROWS) drawn.push(shape("rect", { class: "sector", x: LEFT + (sector % perLine) * wide, y: TOP + line * ROW + 0.5, width: wide, height: ROW - 1 }, shape("title", {}, `sector ${sector}`)));
  }
  const more = lines.length > MOST_ROWS ? `and ${plural(lines.length - MOST_ROWS, "more line")} of 128 bytes` : "";
  return picture(lines.map((line) => `byte ${128 * line}`), `${plural(touched.length, "sector")} in ${plural(lines.length, "line")} of 128 bytes`, drawn, more);
}

// A row per turn: which bank serves which lanes.
function sharedPicture(accesses) {
  const rows = [], drawn = [], counts = turns(accesses);
  banks(accesses).forEach((group, place) => {
    const first = rows.length;
    for (let turn = 0; turn < counts[place]; turn++) rows.push(`turn ${first + turn + 1}`);
    for (const [bank, words] of group) {
      words.forEach(({ word, lanes }, turn) => {
        if (first + turn < MOST_ROWS) drawn.push(cell(bank, first + turn, lanes, `bank ${bank}, word ${word}: ${lanesText(lanes)}`));
      });
    }
  });
  const more = rows.length > MOST_ROWS ? `and ${plural(rows.length - MOST_ROWS, "more turn")}` : "";
  return picture(rows, `${plural(rows.length, "turn")} of the 32 banks`, drawn, more);
}

function globalFacts(accesses, width) {
  const moved = SECTOR_BYTES * sectors(accesses).length, different = new Set(accesses.flatMap(({ start }) => Array.from({ length: width }, (_, step) => start + step))).size;
  const said = `${plural(moved / SECTOR_BYTES, "sector")} of 32 bytes: ${moved.toLocaleString("en")} bytes move for ${plural(different, "different byte")}, ${Math.round((100 * different) / moved)} % of them used.`;
  return [said, [["bytes requested by the lanes", LANES * width], ["different bytes among them", different], ["sectors", moved / SECTOR_BYTES], ["minimum for these bytes", Math.ceil(different / SECTOR_BYTES)], ["bytes moved", moved]]];
}

function sharedFacts(accesses, width) {
  const counts = turns(accesses), all = counts.reduce((sum, count) => sum + count, 0), worst = Math.max(...counts), conflicts = all - counts.length;
  const said = conflicts ? `${plural(all, "turn")} instead of ${counts.length}: a ${worst}-way bank conflict, ${plural(conflicts, "turn")} lost.` : `${plural(all, "turn")}: no bank conflict.`;
  return [said, [["bytes requested by the lanes", LANES * width], ["lanes served at once", LANES / counts.length], ["turns", all], ["turns without a conflict", counts.length], ["turns lost to conflicts", conflicts]]];
}

function start(place) {
  const said = element("p", { class: "verdict", role: "status" }), drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Accesses" }), facts = element("dl", { class: "facts" }), columns = element("p", { class: "small" });
  const whole = (field, name) => {
    const value = field.value();
    if (!Number.isInteger(value) || value < 0 || value > 1e6) throw new Error(`${name} is a whole number from 0 to 1,000,000.`);
    return value;
  };
  const show = () => {
    try {
      const width = Number(fields.type.value()), accesses = accessesOf(fields.index.value(), width, whole(fields.warp, "warp"), whole(fields.k, "k"));
      const shared = fields.memory.value() === "shared", [told, rows] = (shared ? sharedFacts : globalFacts)(accesses, width);
      said.textContent = told;
      said.className = "verdict";
      columns.textContent = shared ? "Columns: the 32 banks, each one word of 4 bytes wide. Cells: the lane that is served, + where several read the same word."
        : "Columns: the 32 words of a line of 128 bytes. Frames: sectors that move. Cells: the lane that asks, + where several do.";
      drawn.replaceChildren((shared ? sharedPicture : globalPicture)(accesses));
      facts.replaceChildren(...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value.toLocaleString("en"))]));
    } catch (error) {
      said.textContent = error.message;
      said.className = "verdict bad";
    }
    fields.example.set(fields.index.value() in EXAMPLES ? fields.index.value() : "");
    address.write();
  };
  const fields = {
    index: text("index", "x[ … ], with lane, warp and k", "lane", show, "lane"),
    example: choice("example", "Examples", [["", "your own"], ...Object.entries(EXAMPLES).map(([index, told]) => [index, `${told}: ${index}`])], "lane", () => {
      if (fields.example.value()) fields.index.set(fields.example.value());
      show();
    }),
    memory: choice("memory", "x lies in", [["global", "global memory"], ["shared", "shared memory"]], "global", show),
    type: choice("type", "An element is", Object.entries(TYPES), "4", show),
    warp: number("warp", "warp", 0, { min: 0, max: 1e6 }, show),
    k: number("k", "k, a step of a loop", 0, { min: 0, max: 1e6 }, show),
  };
  fields.index.node.classList.add("wide");
  const { example, ...kept } = fields, address = keepInAddress(kept);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said, columns, drawn, facts);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = typeof document === "undefined" ? null : document.getElementById("warp-accesses");
if (place) start(place);
