/* The page about speculation: what a step of the reader's choice yields, wastes and gains. The rules are speculation.js's. */

import { keepInAddress } from "./address-state.js";
import { bandwidth, linearCosts, readConfig } from "./costs.js";
import { PICTURE_WIDTH, choice, element, figures, loadTables, number, powerSlider, shape, slider, table, time } from "./form-fields.js";
import { bestNumDrafts, expectedTokens, speedUp, verificationSeconds, wastedShare } from "./speculation.js";

const MOST = 16, LIMIT = 64; // drafts of the picture, and of the engine
const WIDTH = PICTURE_WIDTH, PANEL = 150, ABOVE = 30, HEIGHT = 2 * (PANEL + ABOVE) + 42, LEFT = 46, RIGHT = 20;
const FREE = "free";

const BEST = "border: 2px solid var(--cache); border-radius: 0";

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)} %`;
const factor = (gain) => `${gain.toFixed(2)}x`;

// Tokens per step and, below, the speed-up against the number of drafts, with a mark at the chosen one: while rows are free both are equal.
function picture(tokens, gains, chosen, best) {
  const most = Math.max(MOST, chosen), x = (k) => LEFT + (k / most) * (WIDTH - LEFT - RIGHT);
  const parts = [shape("title", {}, "Tokens per step and speed-up, by the number of drafts")], every = Math.ceil(most / (WIDTH < 600 ? 8 : 16));
  const panels = [[tokens, "tokens per step", "tokens", "weights", "memory"], [gains, "speed-up over decoding without drafts", "gain", "cache", "arithmetic"]];
  panels.forEach(([values, name, kind, colour, dot], panel) => {
    const bottom = (panel + 1) * (PANEL + ABOVE), high = Math.ceil(Math.max(2, ...values)), y = (value) => bottom - (value / high) * PANEL;
    for (let value = 0; value <= high; value += Math.ceil(high / 4)) {
      parts.push(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(shape("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, String(value)));
    }
    const line = (points, style, of) => shape("polyline", { class: `roof ${of}`, style, points: points.map((value, k) => `${x(k)},${y(value)}`).join(" ") });
    parts.push(shape("text", { x: LEFT, y: bottom - PANEL - 10 }, name));
    parts.push(line(values.map(() => 1), "stroke: var(--md-default-fg-color); stroke-width: 1", "sheet"));
    parts.push(line(values, `stroke: var(--${colour}); stroke-width: 3`, kind));
    if (panel) parts.push(shape("rect", { x: x(best) - 8, y: y(values[best]) - 8, width: 16, height: 16, style: "fill: none; stroke: var(--cache); stroke-width: 2" }));
    parts.push(shape("g", { class: `dot ${dot}` }, shape("circle", { cx: x(chosen), cy: y(values[chosen]), r: 6 })));
  });
  for (let k = 0; k <= most; k += every) parts.push(shape("text", { x: x(k), y: HEIGHT - 24, "text-anchor": "middle" }, String(k)));
  parts.push(shape("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "drafts per sequence and step"));
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Curves; the table below has their figures" }, ...parts);
}

function legend() {
  const entries = [["memory", null, "tokens per step"], ["arithmetic", null, "speed-up over decoding without drafts"], ["", BEST, `fastest, of up to ${MOST} drafts`]];
  return element("ul", { class: "legend" },
    ...entries.map(([kind, style, text]) => element("li", {}, element("span", { class: `key ${kind}`, style, "aria-hidden": "true" }), ` ${text}`)));
}

// The rows that the weights pay for: kept, thrown away, and never used.
function rowsBar(rows, kept, ridge) {
  const whole = Math.max(rows, ridge), parts = [["weights", "give a token that stays", kept], ["cache", "are wasted", rows - kept], [FREE, "more would be free", Math.max(0, whole - rows)]];
  const bar = element("div", { class: "bar", "aria-hidden": "true" },
    ...parts.map(([kind, , size]) => element("span", { class: `part ${kind}`, style: `width: ${(100 * size) / whole}%` })));
  return element("div", {}, bar, element("ul", { class: "legend" },
    ...parts.map(([kind, text, size]) => element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${figures(size)} rows ${text}`))));
}

function checked(fields) {
  const drafts = fields.drafts.value();
  if (!Number.isInteger(drafts) || drafts < 0 || drafts > LIMIT) throw new Error(`The number of drafts must be a whole number from 0 to ${LIMIT}.`);
  return { drafts, acceptance: fields.acceptance.value() / 100, sequences: fields.sequences.value() };
}

function stepTable(linear, draft, { drafts, acceptance, sequences }) {
  const shown = [...new Set([0, 1, 2, 4, 8, MOST, drafts])].sort((one, other) => one - other);
  return table("By the number of drafts", ["drafts", "tokens per step", "rows wasted", "step, at least", "speed-up"], shown.map((k) =>
    [k === drafts ? `${k}, yours` : String(k), figures(expectedTokens(acceptance, k)), percent(wastedShare(acceptance, k)),
      time(1e3 * verificationSeconds(linear, sequences, k, draft)), factor(speedUp(linear, acceptance, sequences, k, draft))]));
}

function verdict({ drafts, acceptance, sequences }, gain, best, bestGain) {
  const rows = sequences * (1 + drafts);
  const yields = `${counted(drafts, "draft")}: ${figures(expectedTokens(acceptance, drafts))} tokens per step and sequence, ${percent(wastedShare(acceptance, drafts))} `
    + `of ${counted(rows, "row")} wasted, ${gain.toFixed(2)} times as fast as without drafts.`;
  return `${yields} ${best ? `Best: ${counted(best, "draft")}, ${factor(bestGain)}.` : "Best: no drafts."}`;
}

async function start(place) {
  const tables = await loadTables(), answer = element("div", { class: "answer" });
  const said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    try {
      const asked = checked(fields), { drafts, acceptance, sequences } = asked, gpu = tables.gpus[fields.gpu.value()];
      const rates = { bandwidth: 1e12 * bandwidth(gpu), flops: 1e12 * (gpu.measured_bf16_tflops ?? gpu.bf16_tflops ?? gpu.fp16_tflops) };
      const of = (name) => linearCosts(readConfig(tables.presets[name]), rates);
      const linear = of(fields.model.value()), draft = fields.source.value() === FREE ? null : of(fields.source.value());
      const counts = Array.from({ length: Math.max(MOST, drafts) + 1 }, (_, k) => k);
      const gains = counts.map((k) => speedUp(linear, acceptance, sequences, k, draft));
      const best = bestNumDrafts(linear, acceptance, sequences, MOST, draft), rows = sequences * (1 + drafts);
      said.className = `verdict ${gains[drafts] < 1 ? "bad" : "good"}`;
      said.textContent = verdict(asked, gains[drafts], best, gains[best]);
      const drawn = picture(counts.map((k) => expectedTokens(acceptance, k)), gains, drafts, best);
      answer.replaceChildren(element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Tokens and speed-up" }, drawn), legend(),
        rowsBar(rows, sequences * expectedTokens(acceptance, drafts), linear.ridge), stepTable(linear, draft, asked));
      address.write();
    } catch (error) {
      said.className = "verdict bad";
      said.textContent = error.message;
      answer.replaceChildren();
    }
  };
  const models = Object.keys(tables.presets).map((name) => [name, name]);
  const fields = {
    acceptance: slider("acceptance", "Each draft is right with probability", { min: 0, max: 100, step: 5, value: 70, said: (value) => `${value} %` }, show),
    drafts: number("drafts", "Drafts per sequence and step", 4, { min: 0, max: LIMIT }, show),
    sequences: powerSlider("sequences", "Sequences together (batch)", 0, 10, 0, show),
    model: choice("model", "Model", models, "llama-3.1-8b", show),
    gpu: choice("gpu", "GPU", Object.keys(tables.gpus).map((name) => [name, name.replace(/^NVIDIA /, "")]), "NVIDIA H200", show),
    source: choice("source", "Drafts from", [[FREE, "n-grams: no cost"], ...models.map(([name]) => [name, `a model like ${name}`])], FREE, show),
  };
  const address = keepInAddress(fields);
  const refused = element("p", { class: "bad", role: "alert" }, address.read());
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), refused, said, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("speculative-decoding");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
