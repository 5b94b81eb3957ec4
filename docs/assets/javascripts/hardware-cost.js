/* All GPUs side by side for one model: floors, what binds, and the price of a million tokens. All sums are costs.js's; prices are the reader's. */

import { keepInAddress } from "./address-state.js";
import { kvItemsize, makePlan, readConfig } from "./costs.js";
import { choice, element, figures, loadTables, number, text, time } from "./form-fields.js";

const shortName = (gpu) => gpu.replace(/^NVIDIA (GeForce )?/, "");

/* "h200 3.5, a100-80gb 1.8" -> { short name: price per hour }. Errors name the part that cannot be read. */
export function readPrices(written, shortNames) {
  const prices = {};
  for (const part of written.split(",").map((one) => one.trim()).filter(Boolean)) {
    const [name, price, ...more] = part.split(/\s+/);
    if (more.length || price === undefined || !/^\d+(\.\d+)?$/.test(price) || Number(price) > 1e6) throw new Error(`“${part.slice(0, 40)}” is not a GPU and its price per hour, such as h200 3.5.`);
    if (!shortNames.includes(name.toLowerCase())) throw new Error(`“${name.slice(0, 40)}” is not one of the GPUs: ${shortNames.join(", ")}.`);
    prices[name.toLowerCase()] = Number(price);
  }
  return prices;
}

/* One row per GPU: its plan, null where the model does not fit, at the batch asked for or the largest that fits. */
export function compareGpus(gpus, config, formats, wishes, prices) {
  return Object.entries(gpus).map(([name, gpu]) => {
    const asked = { ...wishes, batch: wishes.batch ?? 1, pricePerHour: prices[gpu.short_name] ?? null };
    const first = makePlan(config, gpu, formats.weights, formats.kvItem, asked), batch = wishes.batch ?? first.largestBatch;
    if (batch < 1) return { name, gpu, batch, plan: null };
    const plan = makePlan(config, gpu, formats.weights, formats.kvItem, { ...asked, batch });
    return { name, gpu, batch, plan: plan.fits ? plan : null };
  });
}

const ORDERS = {
  speed: ["tokens per second", (row) => -(row.plan?.decode.tokensPerS ?? -1)], cost: ["price of a generated token", (row) => row.plan?.decode.cost ?? Infinity],
  memory: ["memory", (row) => -row.gpu.memory_gb], sheet: ["bandwidth", (row) => -row.gpu.bandwidth_tb_s],
};

function cells({ gpu, batch, plan }) {
  const sheet = [gpu.short_name, `${gpu.memory_gb} GB`, `${figures(gpu.measured_copy_tb_s ?? gpu.bandwidth_tb_s)} TB/s`];
  if (!plan) return [...sheet, batch < 1 ? "too small for the weights" : "does not fit", "–", "–", "–", "–", "–", "–"];
  const { decode, prefill } = plan, money = (cost) => (cost === null ? "–" : figures(cost));
  return [...sheet, batch.toLocaleString("en"), time(decode.floorMs), decode.bound, figures(decode.tokensPerS), `${time(prefill.floorMs)}, ${prefill.bound}`, money(decode.cost), money(prefill.cost)];
}

const HEADS = ["GPU", "memory", "bandwidth", "batch", "decode step, at least", "binds", "tokens per second, at most", "prefill of one prompt, at least", "price of a million generated, at least", "price of a million read, at least"];

function gpuTable(rows) {
  const head = element("tr", {}, ...HEADS.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => cells(row)).map(([first, ...rest]) => element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((one) => element("td", {}, one))));
  const made = element("table", { class: "facts-table" }, element("caption", {}, `${rows.length} GPUs`), element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": "GPUs" }, made);
}

function wishesOf(fields) {
  const wishes = { context: fields.context.value(), batch: fields.batch.value(), tensorParallel: 1, memoryShare: 0.9 };
  for (const [name, value] of [["context", wishes.context], ["batch", wishes.batch]]) {
    if (value !== null && (!Number.isInteger(value) || value < 1 || value > 1e7)) throw new Error(`The ${name} must be a whole number from 1 to 10,000,000${name === "batch" ? ", or empty" : ""}.`);
  }
  return wishes;
}

async function start(place) {
  const tables = await loadTables(), shortNames = Object.values(tables.gpus).map((gpu) => gpu.short_name);
  const said = element("p", { class: "verdict", role: "status" }), answer = element("div", {});
  const show = () => {
    try {
      const config = readConfig(tables.presets[fields.model.value()]), wishes = wishesOf(fields), prices = readPrices(fields.prices.value(), shortNames);
      const formats = { weights: tables.weight_formats[fields.dtype.value()], kvItem: kvItemsize(tables.kv_formats[fields.kvDtype.value()], config.headDim) };
      const [, key] = ORDERS[fields.order.value()], rows = compareGpus(tables.gpus, config, formats, wishes, prices).sort((one, other) => key(one) - key(other) || 0);
      const fitting = rows.filter((row) => row.plan), bound = fitting.filter((row) => row.plan.decode.bound === "memory").length, cheapest = fitting.filter((row) => row.plan.decode.cost !== null).sort((one, other) => one.plan.decode.cost - other.plan.decode.cost)[0];
      said.className = "verdict";
      said.textContent = `It fits ${fitting.length} of ${rows.length} GPUs; memory binds the decode step of ${bound} of them.${cheapest ? ` Of those with a price, ${shortName(cheapest.name)} generates a million tokens for the least: ${figures(cheapest.plan.decode.cost)}, at least.` : " Prices: write them above, to see what a million tokens cost."}`;
      answer.replaceChildren(gpuTable(rows));
    } catch (error) {
      said.className = "verdict bad";
      said.textContent = error.message;
    }
    address.write();
  };
  const formats = (table) => Object.keys(table).map((name) => [name, name]);
  const fields = {
    model: choice("model", "Model", Object.keys(tables.presets).map((name) => [name, name]), "llama-3.1-8b", show),
    dtype: choice("dtype", "Weights in", formats(tables.weight_formats), "bfloat16", show),
    kvDtype: choice("kv-dtype", "Keys and values in", formats(tables.kv_formats), "bfloat16", show),
    context: number("context", "Tokens of each sequence (context)", 4096, { min: 1, max: 1e7 }, show),
    batch: number("batch", "Batch (empty: the largest that fits)", 16, { min: 1, max: 1e7, optional: true }, show),
    order: choice("order", "Order by", Object.entries(ORDERS).map(([name, [told]]) => [name, told]), "speed", show),
    prices: text("prices", "Prices per hour, in any currency", "for example h200 3.5, a100-80gb 1.8", show),
  };
  fields.prices.node.classList.add("wide");
  const address = keepInAddress(fields), refused = element("p", { class: "bad", role: "alert" }, address.read());
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = typeof document === "undefined" ? null : document.getElementById("hardware-cost");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
