/* A recorded decode step as bars, a lane per stage: kernels that start before their predecessor has ended. The sums are step-times.js's. */

import { keepInAddress } from "./address-state.js";
import { PICTURE_WIDTH, choice, element, figures, shape, table } from "./form-fields.js";
import { COPIES, kernelsOf, totals } from "./step-times.js";

const WIDTH = PICTURE_WIDTH, LEFT = WIDTH > 500 ? 148 : 132, RIGHT = 8, ROW = 24, TOP = 6;
const microseconds = (value) => `${figures(value)} µs`;

function picture(step, kernels, chosen, from, to) {
  const x = (time) => LEFT + ((Math.min(to, Math.max(from, time)) - from) / (to - from)) * (WIDTH - LEFT - RIGHT), bottom = TOP + ROW * step.stages.length, parts = [], behind = [];
  step.stages.forEach((stage, row) => {
    parts.push(shape("text", { x: LEFT - 6, y: TOP + ROW * row + 16, "text-anchor": "end" }, stage), shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: TOP + ROW * (row + 1), y2: TOP + ROW * (row + 1) }));
  });
  (WIDTH > 500 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1]).forEach((part) => parts.push(shape("text", { x: x(from + part * (to - from)), y: bottom + 16, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, part === 1 ? microseconds(to) : figures(from + part * (to - from)))));
  kernels.forEach((kernel, place) => {
    if (kernel.end <= from || kernel.begin >= to) return;
    const y = TOP + ROW * step.stages.indexOf(kernel.stage) + 4, alone = kernel.end - kernel.adds, hint = `${kernel.name}: ${microseconds(kernel.end - kernel.begin)}, adds ${microseconds(kernel.adds)}`;
    // The lighter bars lie behind all others, because kernels of one lane overlap too.
    behind.push(shape("rect", { class: kernel.isCopy ? "free-bar" : "waiting-bar", x: x(kernel.begin), y, width: Math.max(1, x(kernel.end) - x(kernel.begin)), height: ROW - 8 }, shape("title", {}, hint)));
    if (!kernel.isCopy) parts.push(shape("rect", { class: "decode", x: x(alone), y, width: Math.max(1, x(kernel.end) - x(alone)), height: ROW - 8 }, shape("title", {}, hint)));
    if (place === chosen) parts.push(shape("rect", { class: "chosen-kernel", x: x(kernel.begin), y, width: Math.max(1, x(kernel.end) - x(kernel.begin)), height: ROW - 8 }));
  });
  const { begin, end } = kernels[chosen];
  for (const time of [begin, end]) if (time >= from && time <= to) parts.push(shape("line", { class: "moment", x1: x(time), x2: x(time), y1: 0, y2: bottom }));
  const caption = `Kernels by stage from ${figures(from)} to ${figures(to)} µs`;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${bottom + 24}`, role: "img", "aria-label": caption }, shape("title", {}, caption), ...behind, ...parts);
}

function tell({ name, stage, begin, end, adds, overlaps, isCopy }, place, count) {
  const what = `${place + 1} of ${count}, ${name} (${stage}): from ${figures(begin)} to ${microseconds(end)}`;
  if (isCopy) return `${what}. A copy keeps no SM busy.`;
  return `${what}, ${microseconds(end - begin)}. ${overlaps ? `Its first ${microseconds(Math.min(overlaps, end - begin))} lie beside kernels that ended before it` : "It starts after the kernel before it has ended"}; it adds ${microseconds(adds)} to the step.`;
}

async function start(place) {
  const loaded = await fetch(new URL("step-timeline.json", import.meta.url));
  if (!loaded.ok) throw new Error(`step-timeline.json could not be loaded (${loaded.status}).`);
  const step = await loaded.json(), kernels = kernelsOf(step.events).sort((one, other) => one.begin - other.begin), last = kernels.length - 1, { stages, idle } = totals(kernels, step.time);
  let at = 0;
  const said = element("p", { class: "verdict", role: "status" }), drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Timeline" });
  const slider = element("input", { id: "kernel", type: "range", min: 0, max: last, step: 1, value: 0 }), shownKernel = element("output", { for: "kernel" });
  const go = (to) => {
    at = Math.min(last, Math.max(0, to));
    slider.value = at;
    shownKernel.textContent = kernels[at].name;
    slider.setAttribute("aria-valuetext", `${at + 1}: ${kernels[at].name}`);
    const wide = Math.min(Number(fields.zoom.value()), 1) * step.time, middle = (kernels[at].begin + kernels[at].end) / 2, from = Math.min(Math.max(0, middle - wide / 2), step.time - wide);
    said.textContent = tell(kernels[at], at, kernels.length);
    drawn.replaceChildren(picture(step, kernels, at, from, from + wide));
    address.write();
  };
  const fields = { zoom: choice("zoom", "Shown", [["1", "the whole step"], ["0.5", "a half of it, around the kernel"], ["0.2", "a fifth"], ["0.05", "a twentieth"]], "1", () => go(at)) };
  const address = keepInAddress(fields), refused = element("p", { class: "bad", role: "alert" }, address.read());
  slider.oninput = () => go(Number(slider.value));
  const buttons = [["back", "Back", -1], ["forward", "Forward", 1]].map(([id, text, by]) => element("button", { id, type: "button", class: "md-button", onclick: () => go(at + by) }, text));
  const stepper = element("div", { class: "stepper", role: "group", "aria-label": "Kernels" }, ...buttons);
  const legend = element("ul", { class: "legend" }, ...[["decode-key", "what a kernel adds to the step"], ["waiting-key", "it runs or waits beside the kernel before it"], ["free", "a copy"]].map(([kind, text]) =>
    element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${text}`)));
  const share = (time) => `${figures((100 * time) / step.time)} %`;
  const rows = [...step.stages.filter((stage) => stage !== COPIES).map((stage) => [stage, microseconds(stages[stage]), share(stages[stage])]), ["no kernel runs", microseconds(idle), share(idle)], ["in all", microseconds(step.time), "100 %"]];
  place.replaceChildren(element("div", { class: "fields" }, fields.zoom.node, element("div", { class: "field" }, element("label", { for: "kernel" }, "Kernel"), slider, shownKernel)), refused, stepper, said, drawn, legend,
    table(`${step.what[0].toUpperCase()}${step.what.slice(1)} (${step.run})`, ["stage", "adds", "of the time shown"], rows));
  go(0);
}

const place = typeof document === "undefined" ? null : document.getElementById("step-timeline");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
