/* The roofline: stages of a forward as dots that move with batch and context, under the limits of a GPU. Counts are costs.js's. */

import { keepInAddress } from "./address-state.js";
import { SIXTEEN_BITS, bandwidth, decodeStages, prefillStages, readConfig } from "./costs.js";
import { PICTURE_WIDTH, choice, element, figures, loadTables, powerSlider, shape, table } from "./form-fields.js";

const WIDTH = PICTURE_WIDTH, HEIGHT = 420, LEFT = 62, RIGHT = 28, TOP = 34, BOTTOM = 48;
const X = [-2, 4], Y = [-2, 4]; // powers of ten: FLOP per byte, TFLOP/s

const across = (intensity) => LEFT + ((clamp(Math.log10(intensity), X) - X[0]) / (X[1] - X[0])) * (WIDTH - LEFT - RIGHT);
const down = (tflops) => HEIGHT - BOTTOM - ((clamp(Math.log10(tflops), Y) - Y[0]) / (Y[1] - Y[0])) * (HEIGHT - TOP - BOTTOM);
const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

// What `gpu` reaches at most at an arithmetic intensity: bandwidth times intensity, or the tensor cores' rate.
export const roof = (intensity, tbS, tflops) => Math.min(tbS * intensity, tflops);

const power = (exponent) => (exponent >= 0 && exponent <= 4 ? (10 ** exponent).toLocaleString("en") : String(10 ** exponent));

function axes() {
  const parts = [];
  for (let exponent = X[0]; exponent <= X[1]; exponent += 1) {
    const x = across(10 ** exponent);
    parts.push(shape("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    parts.push(shape("text", { x, y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, power(exponent)));
  }
  for (let exponent = Y[0]; exponent <= Y[1]; exponent += 1) {
    const y = down(10 ** exponent);
    parts.push(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    parts.push(shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, power(exponent)));
  }
  parts.push(shape("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte"));
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  parts.push(shape("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, "TFLOP/s"));
  return parts;
}

function roofLine(tbS, tflops, kind) {
  const ridge = tflops / tbS, left = Math.max(10 ** X[0], 10 ** Y[0] / tbS);
  const points = [[left, tbS * left], [ridge, tflops], [10 ** X[1], tflops]];
  return shape("polyline", { class: `roof ${kind}`, points: points.map(([x, y]) => `${across(x)},${down(y)}`).join(" ") });
}

function dot(one, index, tbS, tflops) {
  const bound = tbS * one.intensity < tflops ? "memory" : "arithmetic";
  return shape("g", { class: `dot ${bound}` },
    shape("circle", { cx: across(one.intensity), cy: down(roof(one.intensity, tbS, tflops)), r: 6 }),
    shape("title", {}, `${index + 1}. ${one.name}`));
}

// Stages of like intensity lie on one spot: one label above it lists their numbers.
function labels(stages, tbS, tflops) {
  const spots = [];
  stages.forEach((one, index) => {
    if (one.intensity === 0) return;
    const x = across(one.intensity), near = spots.find((spot) => Math.abs(spot.x - x) < 14);
    if (near) near.numbers.push(index + 1);
    else spots.push({ x, y: down(roof(one.intensity, tbS, tflops)), numbers: [index + 1] });
  });
  spots.sort((one, other) => one.x - other.x);
  return spots.map(({ x, y, numbers }, place) => {
    const flat = y <= down(tflops) + 1, lift = flat ? 12 + 14 * (place % 3) : 8; // on the flat roof neighbours' labels take turns in height
    return shape("text", { class: "label", x: flat ? x : x - 8, y: y - lift, "text-anchor": flat ? "middle" : "end" }, numbers.join(", "));
  });
}

function measuredDot(kernel) {
  const x = across(kernel.intensity), y = down(kernel.tflops);
  return shape("rect", { class: "measured-dot", x: x - 5, y: y - 5, width: 10, height: 10 }, shape("title", {}, `${kernel.variant}, ${kernel.case}: measured`));
}

// The filter of the measured kernels: of a stage, and of sizes, where one is chosen.
export const isShown = (kernel, { stage, sizes }) => (!stage || kernel.stage === stage) && (!sizes || kernel.case === sizes);

const unique = (kernels, key) => [...new Set(kernels.map((kernel) => kernel[key]))];

async function start(place) {
  const tables = await loadTables();
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-labelledby": "roofline-title" });
  const answer = element("div", { class: "answer" });
  const said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    const name = fields.gpu.value(), gpu = tables.gpus[name], config = readConfig(tables.presets[fields.model.value()]);
    const sheet = gpu.bf16_tflops ?? gpu.fp16_tflops, tbS = bandwidth(gpu), tflops = gpu.measured_bf16_tflops ?? sheet;
    const decoding = fields.phase.value() === "decode", batch = fields.batch.value(), context = fields.context.value();
    const stages = decoding ? decodeStages(config, batch, context, SIXTEEN_BITS) : prefillStages(config, context, SIXTEEN_BITS, batch);
    const measured = tables.measured_kernels.filter((kernel) => kernel.gpu === name), chosen = { stage: fields.stage.value(), sizes: fields.sizes.value() };
    const kernels = measured.filter((kernel) => isShown(kernel, chosen));
    const title = shape("title", { id: "roofline-title" }, `Roofline of ${name}: the stages below, in the order of the table`);
    // A copy without arithmetic has no place on a logarithmic axis.
    const dots = stages.flatMap((one, index) => (one.intensity === 0 ? [] : [dot(one, index, tbS, tflops)]));
    const roofs = [roofLine(gpu.bandwidth_tb_s, sheet, "sheet"), ...(gpu.measured_copy_tb_s ? [roofLine(tbS, tflops, "measured")] : [])];
    picture.replaceChildren(title, ...axes(), ...roofs, ...kernels.map(measuredDot), ...dots, ...labels(stages, tbS, tflops));
    const memoryBound = stages.filter((one) => tbS * one.intensity < tflops).length;
    said.textContent = `${memoryBound} of ${stages.length} stages are bound by memory; the ridge is at ${figures(tflops / tbS)} FLOP per byte.`;
    const rows = stages.map((one, index) => [`${index + 1}. ${one.name}`, figures(one.intensity), one.intensity ? figures(roof(one.intensity, tbS, tflops)) : "–",
      tbS * one.intensity < tflops ? "memory" : "arithmetic"]);
    answer.replaceChildren(table("The dots", ["stage", "FLOP per byte", "TFLOP/s, at most", "bound by"], rows));
    if (kernels.length) answer.append(...measuredTables(kernels, name, tbS, tflops, Boolean(chosen.stage || chosen.sizes)));
    else answer.append(element("p", {}, measured.length ? `None of the ${measured.length} measured kernels is of this stage and these sizes.` : `No kernel was measured on a ${name}.`));
    address.write();
  };
  const fields = {
    gpu: choice("gpu", "GPU", Object.keys(tables.gpus).map((name) => [name, name.replace(/^NVIDIA /, "")]), "NVIDIA H200", show),
    model: choice("model", "Model", Object.keys(tables.presets).map((name) => [name, name]), "llama-3.1-8b", show),
    phase: choice("phase", "Phase", [["decode", "decode: one token per sequence"], ["prefill", "prefill: whole prompts"]], "decode", show),
    batch: powerSlider("batch", "Batch", 0, 10, 0, show),
    context: powerSlider("context", "Context", 4, 17, 10, show),
    stage: choice("stage", "Measured kernels of", [["", "all stages"], ...unique(tables.measured_kernels, "stage").map((name) => [name, name])], "", () => { offerSizes(); show(); }),
    sizes: choice("sizes", "Sizes of the kernels", [["", "all"], ...unique(tables.measured_kernels, "case").map((name) => [name, name])], "", show),
  };
  // Only sizes of the chosen stage can be chosen; one that no longer can goes back to all.
  const offerSizes = () => {
    const stage = fields.stage.value(), select = fields.sizes.node.querySelector("select"), before = select.value;
    const names = unique(tables.measured_kernels.filter((kernel) => !stage || kernel.stage === stage), "case");
    select.replaceChildren(...["", ...names].map((name) => element("option", { value: name, selected: name === before }, name || "all")));
  };
  const address = keepInAddress(fields);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  offerSizes();
  const legend = element("ul", { class: "legend" },
    ...[["memory", "a stage that memory bounds, on the roof: the most it can reach"], ["arithmetic", "a stage that arithmetic bounds"],
      ["measured-dot", "a kernel of this package, measured on such a GPU"]].map(([kind, text]) =>
      element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${text}`)));
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said,
    element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Roofline" }, picture), legend, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

// Of each stage the kernel whose share is largest.
export function bestOfStages(kernels, share) {
  const best = new Map();
  for (const kernel of kernels) {
    if (!best.has(kernel.stage) || share(kernel) > share(best.get(kernel.stage))) best.set(kernel.stage, kernel);
  }
  return [...best.values()];
}

// The measured kernels that were asked for; if none were, the best of each stage, above a table of all that opens.
function measuredTables(kernels, name, tbS, tflops, asked) {
  const share = (kernel) => kernel.tflops / roof(kernel.intensity, tbS, tflops);
  const runs = [...new Set(kernels.map(({ date, commit }) => `${date}, commit ${commit}`))].sort().join("; ");
  const rows = (some) => some.map((kernel) => [`${kernel.variant}, ${kernel.case}`, figures(kernel.intensity), figures(kernel.tflops), `${figures(100 * share(kernel))} %`]);
  const shown = (title, some) => table(`${title}, measured on one ${name} by minllm bench kernels (${runs}), not on your machine`, ["kernel and sizes", "FLOP per byte", "TFLOP/s", "of the roof"], rows(some));
  const all = shown(`${kernels.length} kernels`, kernels);
  if (asked) return [all];
  return [shown("The nearest to the roof of each stage", bestOfStages(kernels, share)), element("details", {}, element("summary", {}, `All ${kernels.length} kernels; choose a stage or sizes above for fewer`), all)];
}

const place = typeof document === "undefined" ? null : document.getElementById("roofline");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
