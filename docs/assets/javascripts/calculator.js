/* The KV-cache and hardware calculator: fields in, memory and floors out. All sums are costs.js's. */

import { makePlan, decodeStages, kvItemsize, matrixBytesIn, shard, readConfig } from "./costs.js";
import { bytes, choice, element, figures, loadTables, number, table, time } from "./form-fields.js";

const PASTED = "pasted";

function fields(tables, changed) {
  const models = Object.keys(tables.presets).map((name) => [name, name]);
  const gpus = Object.entries(tables.gpus).map(([name, gpu]) => [name, `${name.replace(/^NVIDIA /, "")}, ${gpu.memory_gb} GB`]);
  const formats = (table) => Object.keys(table).map((name) => [name, name]);
  return {
    model: choice("model", "Model", [...models, [PASTED, "another: paste its config.json"]], "llama-3.1-8b", changed),
    gpu: choice("gpu", "GPU", gpus, "NVIDIA H100 80GB HBM3", changed),
    degree: number("degree", "GPUs that share the model", 1, { min: 1 }, changed),
    dtype: choice("dtype", "Weights in", formats(tables.weight_formats), "bfloat16", changed),
    kvDtype: choice("kv-dtype", "Keys and values in", formats(tables.kv_formats), "bfloat16", changed),
    batch: number("batch", "Sequences together (batch)", 16, { min: 1 }, changed),
    context: number("context", "Tokens of each (context)", 4096, { min: 1 }, changed),
    share: number("share", "Share of the memory to use, %", 90, { min: 1, max: 100 }, changed),
    price: number("price", "Price of one GPU an hour (optional)", "", { min: 0, step: "any", optional: true }, changed),
  };
}

function readWishes(form, tables, pasted) {
  const name = form.model.value();
  let values = tables.presets[name];
  if (name === PASTED) {
    try {
      values = JSON.parse(pasted.value);
    } catch (error) {
      throw new Error(pasted.value.trim() ? `The pasted text is not JSON: ${error.message}` : "Paste the model's config.json into the box.");
    }
    if (values === null || typeof values !== "object" || Array.isArray(values)) throw new Error("A config.json is one JSON object, from { to }.");
  }
  const share = form.share.value(), price = form.price.value();
  if (!(share > 0 && share <= 100)) throw new Error("The share of the memory is above 0 and at most 100 %.");
  if (price !== null && !(price >= 0)) throw new Error("The price is a number of at least 0, or empty.");
  const wishes = { context: form.context.value(), batch: form.batch.value(), tensorParallel: form.degree.value(),
    memoryShare: share / 100, pricePerHour: price };
  const config = readConfig(values);
  return { config, gpu: tables.gpus[form.gpu.value()], format: tables.weight_formats[form.dtype.value()],
    kvItem: kvItemsize(tables.kv_formats[form.kvDtype.value()], config.headDim), wishes };
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
  const each = wishes.tensorParallel > 1 ? " on each GPU" : "";
  if (plan.fits) return `It fits: ${bytes(used)} of ${bytes(plan.budget)}${each}.`;
  if (plan.weights > plan.budget) return `It does not fit: the weights alone are ${bytes(plan.weights)}, and ${bytes(plan.budget)} may be used${each}.`;
  return `It does not fit: ${bytes(used - plan.budget)} too much${each}.`;
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

function results(plan, wishes) {
  const rows = [
    ["Bytes of a token's keys and values", tokenLine(plan)],
    ["Largest batch at this context", plan.largestBatch ? plan.largestBatch.toLocaleString("en") : "none"],
    ["Decode step, at least", floorLine(plan.decode)],
    ["Tokens a second, at most", figures(plan.decode.tokensPerS)],
    ["Prefill of one such prompt, at least", floorLine(plan.prefill)],
    ["Batch where arithmetic catches up with reading weights", figures(plan.ridgeBatch)],
    ["Limits", `${figures(plan.bandwidth)} TB/s (${plan.bandwidthSource}), ${figures(plan.tflops)} TFLOP/s (${plan.tflopsSource})`],
  ];
  if (wishes.pricePerHour !== null) {
    rows.push(["A million tokens, at least", `${figures(plan.decode.cost)} generated, ${figures(plan.prefill.cost)} read`]);
  }
  return table("What it comes to", ["figure", "value"], rows);
}

function stageTable({ config, format, kvItem, wishes }) {
  const items = { item: format.itemsize, matrixBytes: matrixBytesIn(format), kvItem };
  const stages = decodeStages(shard(config, wishes.tensorParallel), wishes.batch, wishes.context, items);
  const rows = stages.map((one) => [one.name, bytes(one.weights), bytes(one.kv), bytes(one.activations), figures((one.flops + one.other) / 1e9),
    figures(one.intensity)]);
  return table("One decode step, stage by stage", ["stage", "weights", "keys and values", "activations", "GFLOP", "FLOP a byte"], rows);
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
      const asked = readWishes(form, tables, pasted);
      const plan = makePlan(asked.config, asked.gpu, asked.format, asked.kvItem, asked.wishes);
      said.textContent = verdict(plan, asked.wishes);
      said.className = plan.fits ? "verdict good" : "verdict bad";
      answer.replaceChildren(memoryBar(plan), results(plan, asked.wishes), stageTable(asked));
    } catch (error) {
      said.textContent = error.message;
      said.className = "verdict bad";
      answer.replaceChildren();
    }
  };
  const form = fields(tables, show);
  pasted.oninput = show;
  const { model, ...others } = form;
  place.replaceChildren(
    element("form", { class: "fields" }, model.node, pasteField, ...Object.values(others).map((field) => field.node)), said, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("calculator");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
