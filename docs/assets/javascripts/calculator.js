/* The KV-cache and hardware calculator: fields in, memory and floors out. All sums are costs.js's. */

import { keepInAddress } from "./address-state.js";
import { makePlan, decodeStages, kvItemsize, lastStage, matrixBytesIn, microBatches, shard, readConfig } from "./costs.js";
import { bytes, choice, element, figures, loadTables, number, table, time } from "./form-fields.js";

const PASTED = "pasted";
const shortName = (gpu) => gpu.replace(/^NVIDIA /, "");

function fields(tables, changed) {
  const models = Object.keys(tables.presets).map((name) => [name, name]);
  const gpus = Object.entries(tables.gpus).map(([name, gpu]) => [name, `${shortName(name)}, ${gpu.memory_gb} GB`]);
  const formats = (table) => Object.keys(table).map((name) => [name, name]);
  return {
    model: choice("model", "Model", [...models, [PASTED, "another: paste its config.json"]], "llama-3.1-8b", changed),
    gpu: choice("gpu", "GPU", gpus, "NVIDIA H100 80GB HBM3", changed),
    otherModel: choice("other-model", "Compare with the model", [["", "none"], ...models], "", changed),
    otherGpu: choice("other-gpu", "Compare with the GPU", [["", "none"], ...gpus], "", changed),
    degree: number("degree", "GPUs that share each layer (tensor parallel)", 1, { min: 1 }, changed),
    stages: number("stages", "Stages that share the layers (pipeline parallel)", 1, { min: 1 }, changed),
    dtype: choice("dtype", "Weights in", formats(tables.weight_formats), "bfloat16", changed),
    kvDtype: choice("kv-dtype", "Keys and values in", formats(tables.kv_formats), "bfloat16", changed),
    batch: number("batch", "Sequences together (batch)", 16, { min: 1 }, changed),
    context: number("context", "Tokens of each (context)", 4096, { min: 1 }, changed),
    share: number("share", "Share of the memory to use, %", 90, { min: 1, max: 100 }, changed),
    price: number("price", "Price of one GPU per hour (optional)", "", { min: 0, step: "any", optional: true }, changed),
  };
}

function modelValues(name, tables, pasted) {
  if (name !== PASTED) return tables.presets[name];
  let values;
  try {
    values = JSON.parse(pasted.value);
  } catch (error) {
    throw new Error(pasted.value.trim() ? `The pasted text is not JSON: ${error.message}` : "Paste the model's config.json into the box.");
  }
  if (values === null || typeof values !== "object" || Array.isArray(values)) throw new Error("A config.json is one JSON object, from { to }.");
  return values;
}

function readWishes(form) {
  const share = form.share.value(), price = form.price.value();
  if (!(share > 0 && share <= 100)) throw new Error("The share of the memory is above 0 and at most 100 %.");
  if (price !== null && !(price >= 0 && price < 1e9)) throw new Error("The price is a number from 0 to 1,000,000,000, or empty.");
  const wishes = { context: form.context.value(), batch: form.batch.value(), tensorParallel: form.degree.value(),
    pipelineParallel: form.stages.value(), memoryShare: share / 100, pricePerHour: price };
  for (const [name, value] of [["context", wishes.context], ["batch", wishes.batch], ["number of GPUs", wishes.tensorParallel],
    ["number of stages", wishes.pipelineParallel]]) {
    if (value > 1e9) throw new Error(`The ${name} is a whole number of at most 1,000,000,000.`);
  }
  return wishes;
}

// What is asked of one model on one GPU: { name, gpuName, config, gpu, format, kvItem, wishes, plan }.
function ask(name, gpuName, wishes, form, tables, pasted) {
  const config = readConfig(modelValues(name, tables, pasted)), gpu = tables.gpus[gpuName], format = tables.weight_formats[form.dtype.value()];
  const kvItem = kvItemsize(tables.kv_formats[form.kvDtype.value()], config.headDim);
  return { name, gpuName, config, gpu, format, kvItem, wishes, plan: makePlan(config, gpu, format, kvItem, wishes) };
}

// Every chosen model on every chosen GPU; the first is the one asked for, of the others one that cannot be planned says why.
function askAll(form, tables, pasted) {
  const wishes = readWishes(form), names = [form.model.value(), form.otherModel.value()], gpus = [form.gpu.value(), form.otherGpu.value()];
  const pairs = [...new Set(names)].filter(Boolean).flatMap((name) => [...new Set(gpus)].filter(Boolean).map((gpu) => [name, gpu]));
  return pairs.map(([name, gpuName], place) => {
    try {
      return ask(name, gpuName, wishes, form, tables, pasted);
    } catch (error) {
      if (place === 0) throw error;
      return { name, gpuName, error: error.message };
    }
  });
}

function memoryBar(plan) {
  const parts = [["weights", plan.weights], ["cache", plan.kv], ["forward", plan.activations]];
  const names = { weights: "weights", cache: "keys and values", forward: "one forward", free: "free", kept: "kept free" };
  const used = plan.weights + plan.kv + plan.activations, whole = Math.max(plan.memory, used);
  parts.push(["free", Math.max(0, plan.budget - used)], ["kept", Math.max(0, plan.memory - Math.max(plan.budget, used))]);
  const shown = parts.filter(([, size]) => size > 0);
  const bar = element("div", { class: "bar", "aria-hidden": "true" },
    ...shown.map(([kind, size]) => element("span", { class: `part ${kind}`, style: `width: ${(100 * size) / whole}%` })));
  const legend = element("ul", { class: "legend" },
    ...shown.map(([kind, size]) => element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${names[kind]} ${bytes(size)}`)));
  return element("div", {}, bar, legend);
}

function verdict(plan, wishes) {
  const used = plan.weights + plan.kv + plan.activations;
  const each = wishes.tensorParallel * wishes.pipelineParallel > 1 ? " on each GPU" : "";
  if (plan.fits) return `It fits: ${bytes(used)} of ${bytes(plan.budget)}${each}.`;
  if (plan.weights > plan.budget) return `It does not fit: the weights alone are ${bytes(plan.weights)}, and ${bytes(plan.budget)} may be used${each}.`;
  return `It does not fit: ${bytes(used - plan.budget)} too much${each}.`;
}

// The weights' numbers, and with experts how many of them a token multiplies by and a decode step reads.
function numbersLine(plan) {
  const count = `${figures(plan.parameters / 1e9)} billion`;
  if (plan.touchedExperts === null) return count;
  return `${count}, of which a token multiplies by ${figures(plan.activeParameters / 1e9)} billion; a decode step reads about ${figures(plan.touchedExperts)} experts of each layer`;
}

function tokenLine(plan) {
  const ratio = plan.ungroupedKvToken / plan.allKvToken;
  if (ratio === 1) return bytes(plan.allKvToken);
  return `${bytes(plan.allKvToken)} (${bytes(plan.ungroupedKvToken)} if each of the ${ratio} query heads that share a KV head had its own)`;
}

function floorLine(floor) {
  const link = floor.linkMs ? `, then link ${time(floor.linkMs)}` : "";
  return `${time(floor.floorMs)} (memory ${time(floor.memoryMs)}, arithmetic ${time(floor.computeMs)}${link}; ${floor.bound} sets it)`;
}

// What crosses between the GPUs of a step, and how long stages of a pipeline wait; a dash for one GPU.
function crossingLine(floor) {
  if (!floor.sentBytes) return "–";
  const nccl = floor.ncclMs === null ? "" : `; all-reduces by NCCL, as measured between such GPUs, ${time(floor.ncclMs)}`;
  const bubble = floor.bubble ? `; a stage waits ${Math.round(100 * floor.bubble)} % of the time` : "";
  return `${bytes(floor.sentBytes)}${nccl}${bubble}`;
}

function figuresOf({ plan, wishes, error }) {
  if (error) return [error];
  const cost = wishes.pricePerHour === null ? [] : [`${figures(plan.decode.cost)} generated, ${figures(plan.prefill.cost)} read`];
  return [
    verdict(plan, wishes), numbersLine(plan), tokenLine(plan), plan.largestBatch ? plan.largestBatch.toLocaleString("en") : "none", floorLine(plan.decode),
    figures(plan.decode.tokensPerS), crossingLine(plan.decode), floorLine(plan.prefill), figures(plan.ridgeBatch),
    `${figures(plan.bandwidth)} TB/s (${plan.bandwidthSource}), ${figures(plan.tflops)} TFLOP/s (${plan.tflopsSource})`, ...cost,
  ];
}

const FIGURES = ["Memory", "Numbers of the weights", "Bytes of a token's keys and values", "Largest batch at this context", "Decode step, at least", "Tokens per second, at most",
  "Sent by each GPU in a decode step, at most", "Prefill of one such prompt, at least", "Batch where arithmetic catches up with reading weights", "Limits", "A million tokens, at least"];

// One column for each model and GPU.
function results(asked) {
  const columns = asked.map(figuresOf), heads = asked.length === 1 ? ["value"] : asked.map(({ name, gpuName }) => `${name} on ${shortName(gpuName)}`);
  const rows = FIGURES.slice(0, columns[0].length).map((name, place) => [name, ...columns.map((column) => column[place] ?? "–")]);
  return table(asked.length === 1 ? "What it comes to" : "Side by side", ["figure", ...heads], rows);
}

/* The recorded steps of the chosen shapes on the chosen GPUs beside their floors: 16 bits, one GPU, whatever the other fields say. */
function measuredTable(asked, tables) {
  const rows = [], runs = new Set(), sixteen = [tables.weight_formats.bfloat16, 2];
  for (const { name, gpuName, config, gpu, error } of asked) {
    if (error) continue;
    for (const step of tables.measured_steps.filter((one) => one.gpu === gpuName && one.model === name)) {
      const wishes = { context: step.context, batch: step.batch, tensorParallel: 1, pipelineParallel: 1, memoryShare: 0.9, pricePerHour: null };
      const floor = makePlan(config, gpu, ...sixteen, wishes)[step.phase].floorMs;
      const what = step.phase === "decode" ? `decode step, batch ${step.batch}, context ${step.context.toLocaleString("en")}` : `prefill of ${step.context.toLocaleString("en")} tokens`;
      rows.push([`${name} on ${shortName(gpuName)}: ${what}`, time(step.ms), time(floor), `${Math.round((100 * floor) / step.ms)} %`]);
      runs.add(`${step.date}, commit ${step.commit}`);
    }
  }
  if (!rows.length) return element("p", {}, "No step of these models was measured on these GPUs, so the floors stand alone.");
  return table(`Measured beside predicted: one GPU, random weights in bfloat16, ${[...runs].sort().join("; ")}`, ["step", "measured", "floor", "floor / measured"], rows);
}

function stageTable({ name, config, format, kvItem, wishes }) {
  const items = { item: format.itemsize, matrixBytes: matrixBytesIn(format), kvItem };
  const part = lastStage(shard(config, wishes.tensorParallel), wishes.pipelineParallel);
  const stages = decodeStages(part, microBatches(wishes.batch, wishes.pipelineParallel).tokens, wishes.context, items);
  const rows = stages.map((one) => [one.name, bytes(one.weights), bytes(one.kv), bytes(one.activations), figures((one.flops + one.other) / 1e9),
    figures(one.intensity)]);
  return table(`One decode step of ${name}, stage by stage`, ["stage", "weights", "keys and values", "activations", "GFLOP", "FLOP per byte"], rows);
}

async function start(place) {
  const tables = await loadTables();
  const pasted = element("textarea", { id: "pasted", rows: 8, spellcheck: "false", placeholder: '{ "model_type": "llama", ... }' });
  const pasteField = element("div", { class: "field wide", hidden: true }, element("label", { for: "pasted" }, "config.json"), pasted);
  const answer = element("div", { class: "answer" });
  const said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    pasteField.hidden = form.model.value() !== PASTED;
    try {
      const asked = askAll(form, tables, pasted), { plan, wishes } = asked[0];
      said.textContent = verdict(plan, wishes);
      said.className = plan.fits ? "verdict good" : "verdict bad";
      answer.replaceChildren(memoryBar(plan), results(asked), measuredTable(asked, tables), stageTable(asked[0]));
    } catch (error) {
      said.textContent = error.message;
      said.className = "verdict bad";
      answer.replaceChildren();
    }
    address.write();
  };
  const form = fields(tables, show);
  const address = keepInAddress(form);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  pasted.oninput = show;
  const { model, ...others } = form;
  place.replaceChildren(
    element("form", { class: "fields" }, model.node, pasteField, ...Object.values(others).map((field) => field.node)), refused, said, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("calculator");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
