/* Split-KV over the SMs: which block of a decode step runs where and when, as the splits change. The rules are split-kv.js's. */

import { keepInAddress } from "./address-state.js";
import { readConfig } from "./costs.js";
import { PICTURE_WIDTH, choice, element, figures, loadTables, number, powerSlider, shape, table } from "./form-fields.js";
import { BLOCKS_PER_SM, MAX_SPLITS, chooseSplits, headTiles, schedule, shares, keysPerStep, useOfSlots } from "./split-kv.js";

const MODELS = ["llama-3.1-8b", "llama-3.2-1b", "llama-2-70b"], MOST_DRAWN = 6000;
const WIDTH = PICTURE_WIDTH, LEFT = 58, RIGHT = 8, TOP = 8, CHART = 150;

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const hue = (block, heads) => `hsl(${(360 * block.head) / heads + 25 * block.sequence}, 55%, ${block.split % 2 ? 58 : 70}%)`;

// Slots from top to bottom, time from left to right; the line is the moment of the slider.
function timeline(blocks, slots, end, moment, heads) {
  const row = Math.max(1, 330 / slots), height = TOP + row * slots + 24, x = (time) => LEFT + (time / end) * (WIDTH - LEFT - RIGHT);
  const drawn = blocks.filter((block) => block.end > block.start).map((block) =>
    shape("rect", { x: x(block.start), y: TOP + row * block.slot, width: Math.max(0.5, x(block.end) - x(block.start) - 0.5), height: row, fill: hue(block, heads), opacity: block.start <= moment ? 1 : 0.25 }));
  const ticks = [0, 0.5, 1].map((part) => shape("text", { x: x(part * end), y: height - 8, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, `${Math.round(part * end).toLocaleString("en")} keys`));
  const names = [[0, "slot 1"], [slots - 1, `slot ${slots}`]].map(([slot, name]) => shape("text", { x: LEFT - 5, y: TOP + row * slot + (slot ? 2 : 10), "text-anchor": "end" }, name));
  const caption = `${plural(blocks.length, "block")} on ${plural(slots, "slot")} over time`;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": caption }, shape("title", {}, caption),
    shape("rect", { class: "idle", x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: row * slots }), ...drawn, ...ticks, ...names,
    shape("line", { class: "moment", x1: x(moment), x2: x(moment), y1: TOP - 4, y2: TOP + row * slots + 4 }));
}

// How much longer whole waves take than an even spread, by the number of splits.
function teeth(perSplit, slots, splits, most) {
  const points = Array.from({ length: most }, (_, before) => [before + 1, 1 / useOfSlots((before + 1) * perSplit, slots)]);
  const top = Math.log2(Math.max(2, points[0][1])), x = (count) => LEFT + ((count - 0.5) / most) * (WIDTH - LEFT - RIGHT), y = (times) => CHART - 26 - (Math.log2(times) / top) * (CHART - 44);
  const marks = [1, 2, 4, 8, 16, 32, 64].filter((times) => times <= 2 ** top).flatMap((times) => [shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(times), y2: y(times) }),
    shape("text", { x: LEFT - 5, y: y(times) + 4, "text-anchor": "end" }, `${times}×`)]);
  const below = [1, Math.ceil(most / 2), most].map((count) => shape("text", { x: x(count), y: CHART - 8, "text-anchor": "middle" }, String(count)));
  const caption = `Time over that of an even spread, for 1 to ${most} splits; chosen: ${splits}`;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${CHART}`, role: "img", "aria-label": caption }, shape("title", {}, caption), ...marks, ...below,
    shape("polyline", { class: "roof measured", points: points.map(([count, times]) => `${x(count)},${y(times)}`).join(" ") }),
    shape("circle", { class: "chosen", cx: x(splits), cy: y(points[splits - 1][1]), r: 5 }));
}

function measuredTable(rows, slots) {
  if (!rows.length) return element("p", {}, "These sizes were not measured on this GPU for several numbers of splits: 1 sequence of 8,192 keys of llama-3.1-8b on the H200 was.");
  const lines = rows.map((row) => [String(row.splits), `${figures(row.tb_s)} TB/s`, figures((row.splits * row.kv_heads) / slots), `${Math.round(100 * useOfSlots(row.splits * row.kv_heads, slots))} %`]);
  return table(`split_kv measured on one ${rows[0].gpu} by tools/measure_lessons.py --only splits (${rows[0].date}, commit ${rows[0].commit})`, ["splits", "measured", "waves", "use of the slots"], lines);
}

function whole(field, name, most) {
  const value = field.value();
  if (!Number.isInteger(value) || value < 1 || value > most) throw new Error(`${name} must be a whole number from 1 to ${most.toLocaleString("en")}.`);
  return value;
}

function sizesOf(fields, tables) {
  const config = readConfig(tables.presets[fields.model.value()]), gpu = tables.gpus[fields.gpu.value()];
  return { sequences: whole(fields.sequences, "The number of sequences", 1024), context: fields.context.value(), kvHeads: config.kvHeads, group: config.heads / config.kvHeads,
    heads: config.heads, headDim: config.headDim, sms: gpu.multiprocessors };
}

async function start(place) {
  const tables = await loadTables(), said = element("p", { class: "verdict", role: "status" }), answer = element("div", {});
  const drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Blocks over time" });
  const slider = element("input", { id: "moment", type: "range", min: 0, max: 100, step: 1, value: 60 }), now = element("output", { for: "moment" });
  let shown = null;
  const showMoment = () => {
    if (!shown) return;
    const { blocks, slots, end, heads } = shown, moment = (slider.value / 100) * end, busy = blocks.filter((block) => block.start <= moment && moment < block.end).length;
    now.textContent = `${plural(Math.round(moment), "key")} in: ${busy} of ${slots} slots work`;
    slider.setAttribute("aria-valuetext", now.textContent);
    drawn.replaceChildren(timeline(blocks, slots, end, moment, heads));
  };
  const show = () => {
    try {
      const sizes = sizesOf(fields, tables), own = chooseSplits(sizes), asked = fields.splits.value(), splits = asked === null ? own : whole(fields.splits, "The number of splits", MAX_SPLITS);
      const slots = BLOCKS_PER_SM * sizes.sms, perSplit = sizes.sequences * sizes.kvHeads * headTiles(sizes.group)[0], count = splits * perSplit, waves = Math.ceil(count / slots);
      const keys = shares(sizes.context, splits, keysPerStep(sizes.headDim, sizes.group)), use = useOfSlots(count, slots);
      said.className = "verdict";
      said.textContent = `${plural(count, "block")} on ${plural(slots, "slot")}: ${plural(waves, "wave")}, ${Math.round(100 * use)} % of the slots used, so ${figures(1 / use)} times the time of an even spread.`;
      const facts = [["the kernel's own choice", plural(own, "split")], ["keys of a split", keys[0].toLocaleString("en")], ["splits without a key", String(keys.filter((one) => one === 0).length)],
        ["states to merge for each query head", String(splits)], ["slots per SM, which the kernel's registers allow", String(BLOCKS_PER_SM)]];
      const chart = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "By the number of splits" }, teeth(perSplit, slots, splits, Math.min(MAX_SPLITS, Math.max(splits, 16, 2 * own))));
      const rows = tables.measured_splits.filter((row) => row.gpu === fields.gpu.value() && row.sequences === sizes.sequences && row.context === sizes.context
        && row.heads === sizes.heads && row.kv_heads === sizes.kvHeads && row.head_dim === sizes.headDim);
      answer.replaceChildren(element("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
        element("p", { class: "small" }, "Time of whole waves over that of an even spread, by the number of splits:"), chart, measuredTable(rows, slots));
      if (count > MOST_DRAWN) {
        shown = null;
        now.textContent = "";
        drawn.replaceChildren(element("p", {}, `The picture shows at most ${MOST_DRAWN.toLocaleString("en")} blocks: choose fewer sequences or splits.`));
      } else {
        const blocks = schedule(sizes, splits);
        shown = { blocks, slots, end: Math.max(...blocks.map((block) => block.end)), heads: sizes.kvHeads * headTiles(sizes.group)[0] };
        showMoment();
      }
    } catch (error) {
      said.className = "verdict bad";
      said.textContent = error.message;
    }
    address.write();
  };
  const nvidia = Object.keys(tables.gpus).filter((name) => !name.startsWith("AMD"));
  const fields = {
    sequences: number("sequences", "Sequences", 1, { min: 1, max: 1024 }, show),
    context: powerSlider("context", "Keys of each (context)", 6, 17, 13, show),
    splits: number("splits", "Splits (empty: the kernel's choice)", "", { min: 1, max: MAX_SPLITS, optional: true }, show),
    model: choice("model", "Model", MODELS.map((name) => [name, name]), "llama-3.1-8b", show),
    gpu: choice("gpu", "GPU", nvidia.map((name) => [name, `${name.replace(/^NVIDIA /, "")}, ${tables.gpus[name].multiprocessors} SMs`]), "NVIDIA H200", show),
  };
  slider.oninput = showMoment;
  const address = keepInAddress(fields), refused = element("p", { class: "bad", role: "alert" }, address.read());
  const scrub = element("div", { class: "field" }, element("label", { for: "moment" }, "Moment"), slider, now);
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said, scrub, drawn, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = typeof document === "undefined" ? null : document.getElementById("split-waves");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
