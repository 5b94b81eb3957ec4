/* The page about batching: requests under load as a timeline, and what each policy makes of the same arrivals. The rules are batch-scheduler.js's. */

import { POLICIES, metrics, randomRequests, simulate } from "./batch-scheduler.js";
import { bandwidth, readConfig, stepSeconds } from "./costs.js";
import { PICTURE_WIDTH, choice, element, figures, loadTables, number, powerSlider, shape, table } from "./form-fields.js";

const NAMES = { static: "static batching", in_flight: "in-flight, whole prompts", prefill_first: "prefill first", split_fuse: "SplitFuse" };
const PROMPTS = { chat: ["64 to 1,024 tokens", [64, 256, 512, 1024]], long: ["mostly short, some of 4,096 tokens", [64, 128, 256, 512, 4096]] };
const OUTPUTS = [16, 240], REQUESTS = 160;
const LANES = 18, WINDOW = 60; // requests and steps of the timeline
const WIDTH = PICTURE_WIDTH, LEFT = 76, RIGHT = 12, TOP = 8, ROW = 17;

const milliseconds = (seconds) => (seconds === undefined ? "–" : `${figures(1e3 * seconds)} ms`);

// The steps of the picture: from the arrival of request `first` on, and the requests that take part, in order of arrival.
function cut(requests, { steps, tokens }, first) {
  const shown = requests.map((_, i) => i).slice(first, first + LANES), begin = requests[first].arrival;
  const some = steps.filter((step) => step.end > begin).slice(0, WINDOW), end = some.at(-1).end;
  return { begin, end, steps: some, shown: shown.filter((i) => requests[i].arrival < end && tokens[i].at(-1) > begin) };
}

function picture(requests, run, first, name) {
  const { begin, end, steps, shown } = cut(requests, run, first), bottom = TOP + ROW * shown.length;
  const x = (time) => LEFT + (Math.min(Math.max(time, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - RIGHT);
  const parts = [shape("title", {}, `${name}: each line is a request, from its arrival to its last token`)];
  for (let tick = 0; tick <= 4; tick++) {
    const time = begin + (tick / 4) * (end - begin);
    parts.push(shape("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP, y2: bottom }));
    parts.push(shape("text", { x: x(time), y: bottom + 15, "text-anchor": tick === 4 ? "end" : tick === 0 ? "start" : "middle" }, milliseconds(time - begin)));
  }
  shown.forEach((i, lane) => {
    const y = TOP + ROW * lane, from = x(requests[i].arrival), to = x(run.tokens[i].at(-1));
    parts.push(shape("text", { x: LEFT - 6, y: y + 12, "text-anchor": "end" }, `request ${i + 1}`));
    parts.push(shape("line", { class: "waiting", x1: from, x2: to, y1: y + 7, y2: y + 7 }));
  });
  for (const step of steps) {
    for (const [i, start, length, decodes] of step.spans) {
      const lane = shown.indexOf(i);
      if (lane < 0) continue;
      const said = decodes ? `decodes token ${start + 1}` : `computes ${length} tokens of its prompt`;
      parts.push(shape("rect", { class: decodes ? "decode" : "prefill", x: x(step.begin), y: TOP + ROW * lane + 1, height: 12,
        width: Math.max(0.8, x(step.end) - x(step.begin) - 0.6) }, shape("title", {}, `request ${i + 1} ${said}: ${milliseconds(step.end - step.begin)}`)));
    }
  }
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${bottom + 24}`, role: "img", "aria-label": `Timeline of ${steps.length} steps under ${name}` }, ...parts);
}

function row(name, found) {
  const { ttft, tpot, itl, throughput } = found;
  return [name, figures(throughput), milliseconds(ttft?.mean), milliseconds(ttft?.p99), milliseconds(tpot?.mean), milliseconds(itl?.p99)];
}

function checked(fields) {
  const rate = fields.rate.value();
  if (!(rate > 0 && rate <= 1000)) throw new Error("Requests per second must be a number above 0, and at most 1,000.");
  return rate;
}

async function start(place) {
  const tables = await loadTables(), answer = element("div", { class: "answer" }), drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Timeline" });
  const said = element("p", { class: "verdict", role: "status" });
  const show = () => {
    try {
      const rate = checked(fields), chosen = fields.policy.value(), gpu = tables.gpus[fields.gpu.value()], config = readConfig(tables.presets[fields.model.value()]);
      const rates = { bandwidth: 1e12 * bandwidth(gpu), flops: 1e12 * (gpu.measured_bf16_tflops ?? gpu.bf16_tflops ?? gpu.fp16_tflops) };
      const seconds = stepSeconds(config, rates), requests = randomRequests(REQUESTS, rate, PROMPTS[fields.prompts.value()][1], OUTPUTS);
      const sizes = { maxSeqs: fields.slots.value(), budget: fields.budget.value() };
      const runs = Object.fromEntries(Object.keys(POLICIES).map((policy) =>
        [policy, simulate(seconds, requests, { policy, ...sizes })]));
      const found = metrics(requests, runs[chosen].tokens);
      said.className = "verdict";
      said.textContent = `${NAMES[chosen]}: ${figures(found.throughput)} output tokens/s. The first token comes after ${milliseconds(found.ttft.mean)} on average, `
        + `99 of 100 within ${milliseconds(found.ttft.p99)}; 99 of 100 gaps between tokens are below ${milliseconds(found.itl?.p99)}.`;
      drawn.replaceChildren(picture(requests, runs[chosen], Math.floor(REQUESTS / 2), NAMES[chosen]));
      answer.replaceChildren(table("All policies on these arrivals", ["policy", "output tokens/s", "TTFT mean", "TTFT p99", "TPOT mean", "ITL p99"],
        Object.keys(NAMES).map((policy) => row(NAMES[policy], metrics(requests, runs[policy].tokens)))));
    } catch (error) {
      said.className = "verdict bad";
      said.textContent = error.message;
    }
  };
  const fields = {
    policy: choice("policy", "Policy", Object.entries(NAMES), "split_fuse", show),
    rate: number("rate", "Requests per second", 40, { min: 1, max: 1000 }, show),
    budget: powerSlider("budget", "Token budget of a step", 5, 13, 11, show),
    slots: powerSlider("slots", "Slots: most sequences at a time", 0, 8, 8, show),
    prompts: choice("prompts", "Prompts", Object.entries(PROMPTS).map(([name, [text]]) => [name, text]), "chat", show),
    model: choice("model", "Model", ["llama-3.2-1b", "llama-3.1-8b", "qwen3-8b"].map((name) => [name, name]), "llama-3.1-8b", show),
    gpu: choice("gpu", "GPU", Object.keys(tables.gpus).map((name) => [name, name.replace(/^NVIDIA /, "")]), "NVIDIA H200", show),
  };
  const legend = element("ul", { class: "legend" },
    ...[["cache", "part of a prompt"], ["weights", "a decoded token"], ["free", "waiting"]].map(([kind, text]) =>
      element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${text}`)));
  place.replaceChildren(element("form", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), said, legend, drawn, answer);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("batching");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
