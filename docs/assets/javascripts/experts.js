/* The page about experts: what a step reads, how long that takes, and who has most tokens. The load is expert-load.js's. */

import { keepInAddress } from "./address-state.js";
import { bandwidth } from "./costs.js";
import { choiceProbabilities, expertsRead, fullestLoad } from "./expert-load.js";
import { PICTURE_WIDTH, bytes, choice, element, figures, loadTables, number, powerSlider, shape, slider, table, time } from "./form-fields.js";

const HIDDEN = 2048, INNER = 768, LAYERS = 48, ITEM = 2; // the experts of Qwen3-30B-A3B, in 16 bits
const EXPERT_NUMBERS = 3 * HIDDEN * INNER, MOST_EXPERTS = 256, MOST_TOKENS_LOG2 = 12;
const WIDTH = PICTURE_WIDTH, HEIGHT = 240, LEFT = 56, RIGHT = 16, TOP = 16, BOTTOM = 42;

const percent = (share) => `${figures(100 * share)} %`;

// What a step of these sizes reads and computes in all layers; milliseconds are floors.
function costsOf({ tokens, experts, chosen, skew, gpu }) {
  const probabilities = choiceProbabilities(experts, chosen, skew), read = expertsRead(probabilities, tokens);
  const expertBytes = LAYERS * read * EXPERT_NUMBERS * ITEM, routerBytes = LAYERS * experts * HIDDEN * ITEM;
  const flops = 2 * LAYERS * tokens * (chosen * EXPERT_NUMBERS + experts * HIDDEN);
  const tflops = gpu.measured_bf16_tflops ?? gpu.bf16_tflops ?? gpu.fp16_tflops;
  const memoryMs = (expertBytes + routerBytes) / (1e9 * bandwidth(gpu)), computeMs = flops / (1e9 * tflops);
  return { probabilities, read, expertBytes, routerBytes, flops, memoryMs, computeMs, milliseconds: Math.max(memoryMs, computeMs) };
}

function frame(caption, high, said, parts) {
  const y = (value) => HEIGHT - BOTTOM - (value / high) * (HEIGHT - TOP - BOTTOM);
  const lines = [0, 0.25, 0.5, 0.75, 1].flatMap((part) => [
    shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part * high), y2: y(part * high) }),
    shape("text", { x: LEFT - 6, y: y(part * high) + 4, "text-anchor": "end" }, said(part * high)),
  ]);
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${caption}; the table below has the figures` },
    shape("title", {}, caption), ...lines, ...parts(y));
}

const under = (text) => shape("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, text);

// Milliseconds of a step by its number of tokens, with a dot at the chosen one.
function timePicture(asked) {
  const x = (tokens) => LEFT + (Math.log2(tokens) / MOST_TOKENS_LOG2) * (WIDTH - LEFT - RIGHT);
  const points = Array.from({ length: MOST_TOKENS_LOG2 + 1 }, (_, at) => 2 ** at).map((tokens) => [tokens, costsOf({ ...asked, tokens }).milliseconds]);
  const [, chosen] = points.find(([tokens]) => tokens === asked.tokens);
  return frame("Milliseconds of a step by its number of tokens", points.at(-1)[1], figures, (y) => [
    ...points.filter((_, at) => at % 2 === 0).map(([tokens]) => shape("text", { x: x(tokens), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, String(tokens))),
    shape("polyline", { class: "roof measured", points: points.map(([tokens, ms]) => `${x(tokens)},${y(ms)}`).join(" ") }),
    shape("circle", { class: "chosen", cx: x(asked.tokens), cy: y(chosen), r: 6 }), under("tokens per step; the times are in ms"),
  ]);
}

// The mean load of each expert, the most popular first, and a line at the largest load.
function loadPicture(probabilities, tokens, fullest) {
  const width = (WIDTH - LEFT - RIGHT) / probabilities.length, high = Math.max(fullest, tokens * probabilities[0]);
  return frame("Tokens of each expert", high, figures, (y) => [
    ...probabilities.map((p, e) => shape("rect", { class: "load", style: "fill: var(--weights)", x: LEFT + e * width, y: y(tokens * p),
      width: Math.max(0.5, 0.9 * width), height: y(0) - y(tokens * p) })),
    shape("line", { style: "stroke: var(--cache); stroke-width: 2", x1: LEFT, x2: WIDTH - RIGHT, y1: y(fullest), y2: y(fullest) }),
    under("mean tokens per expert; the line: the fullest"),
  ]);
}

function readBar(found, experts) {
  const whole = LAYERS * experts * EXPERT_NUMBERS * ITEM;
  const parts = [["weights", "of experts are read", found.expertBytes], ["free", "of experts are not", whole - found.expertBytes], ["forward", "are the router's", found.routerBytes]];
  const bar = element("div", { class: "bar", "aria-hidden": "true" },
    ...parts.map(([kind, , size]) => element("span", { class: `part ${kind}`, style: `width: ${(100 * size) / (whole + found.routerBytes)}%` })));
  return element("div", {}, bar, element("ul", { class: "legend" },
    ...parts.map(([kind, text, size]) => element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${bytes(size)} ${text}`))));
}

function checked(fields, tables) {
  const experts = fields.experts.value(), chosen = fields.chosen.value();
  if (!Number.isInteger(experts) || experts < 1 || experts > MOST_EXPERTS) throw new Error(`The number of experts must be a whole number from 1 to ${MOST_EXPERTS}.`);
  if (!Number.isInteger(chosen) || chosen < 1 || chosen > experts) throw new Error(`Experts per token must be a whole number from 1 to the ${experts} that there are.`);
  return { experts, chosen, tokens: fields.tokens.value(), skew: fields.skew.value(), gpu: tables.gpus[fields.gpu.value()] };
}

function facts(asked, found, fullest) {
  const mean = (asked.tokens * asked.chosen) / found.read;
  return table("One step", ["what", "figure"], [
    ["Experts read, per layer", `${figures(found.read)} of ${asked.experts}`],
    ["Bytes of these experts, all layers", bytes(found.expertBytes)],
    ["Bytes of the router", `${bytes(found.routerBytes)}, ${percent(found.routerBytes / (found.routerBytes + found.expertBytes))} of all`],
    ["Reading them, at least", time(found.memoryMs)],
    ["Multiplying, at least", time(found.computeMs)],
    ["Time per token, at least", time(found.milliseconds / asked.tokens)],
    ["Tokens of an expert that is read, mean", figures(mean)],
    ["Tokens of the fullest expert", `${figures(fullest)}, ${figures(fullest / ((asked.tokens * asked.chosen) / asked.experts))} times the mean of all`],
    ["Experts without a token", figures(asked.experts - found.read)],
  ]);
}

async function start(place) {
  const tables = await loadTables(), answer = element("div", { class: "answer" });
  const said = element("p", { class: "verdict", role: "status" });
  const framed = (name, picture) => element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": name }, picture);
  const show = () => {
    try {
      const asked = checked(fields, tables), found = costsOf(asked), fullest = fullestLoad(found.probabilities, asked.tokens);
      said.className = "verdict";
      said.textContent = `${asked.tokens.toLocaleString("en")} ${asked.tokens === 1 ? "token reads" : "tokens read"} ${figures(found.read)} of ${asked.experts} experts per layer: `
        + `${bytes(found.expertBytes)} of weights, at least ${time(found.milliseconds)} a step.`;
      answer.replaceChildren(readBar(found, asked.experts), framed("Time of a step", timePicture(asked)),
        framed("Load of the experts", loadPicture(found.probabilities, asked.tokens, fullest)), facts(asked, found, fullest));
      address.write();
    } catch (error) {
      said.className = "verdict bad";
      said.textContent = error.message;
      answer.replaceChildren();
    }
  };
  const fields = {
    tokens: powerSlider("tokens", "Tokens per step (batch)", 0, MOST_TOKENS_LOG2, 4, show),
    experts: number("experts", "Experts per layer", 128, { min: 1, max: MOST_EXPERTS }, show),
    chosen: number("chosen", "Experts per token (top-k)", 8, { min: 1, max: MOST_EXPERTS }, show),
    skew: slider("skew", "The router's preference for some experts", { min: 0, max: 6, value: 0, meaning: (at) => at / 4, position: (found) => Math.round(4 * found), said: (s) => (s ? `1 / rank^${s}` : "none") }, show),
    gpu: choice("gpu", "GPU", Object.keys(tables.gpus).map((name) => [name, name.replace(/^NVIDIA /, "")]), "NVIDIA H200", show),
  };
  const address = keepInAddress(fields);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("expert-load");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
