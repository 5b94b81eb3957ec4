/* Producer and consumers of a warp-specialised GEMM, event by event, as recorded in the simulator. What the events mean: pipeline-states.js. */

import { PICTURE_WIDTH, element, shape, table } from "./form-fields.js";
import { EMPTY, FILLING, FULL, IN_USE, barrierName, statesOf } from "./pipeline-states.js";

const WIDTH = PICTURE_WIDTH, LEFT = 78, ROW = 20, TOP = 6;
const CLASSES = { [FILLING]: "filling", [FULL]: "full", [IN_USE]: "in-use" };

const sizes = (bytes) => `${(bytes / 1024).toLocaleString("en")} KiB`;
const role = (run, warp) => (warp === run.producer ? "the producer" : `consumer warp ${warp}`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function tell(run, place) {
  if (place === 0) return "Nothing has happened yet: all stages are empty, and each barrier is in its first phase.";
  const [kind, warp, barrier, phase, bytes, barriers] = run.events[place - 1], [name, stage] = barrierName(run, barrier), who = capital(role(run, warp)), completes = barriers[barrier][0] > phase;
  const told = {
    wait: () => `${who} waits for “${name}” of stage ${stage}: its phase ${phase} has not completed.`,
    pass: () => (phase < 0 ? `${who} need not wait for “empty” of stage ${stage}: the stage has not been filled yet.` : `${who} goes on: phase ${phase} of “${name}” of stage ${stage} has completed.`),
    arrive: () => (name === "full" ? `${who} arrives at “full” of stage ${stage} and tells it to expect ${sizes(barriers[barrier][2])}.`
      : `The consumers release stage ${stage}: an arrival at its “empty”${completes ? `, whose phase ${phase} completes` : ""}.`),
    copy: () => `${who} starts a TMA copy of ${sizes(bytes)} to stage ${stage}, and does not wait for it.`,
    land: () => `A copy of ${sizes(bytes)} has landed in stage ${stage}${completes ? `: all bytes are there, and phase ${phase} of its “full” completes` : `; ${sizes(barriers[barrier][2])} are missing`}.`,
    use: () => `The tensor cores begin to read stage ${stage}: step ${phase * run.stages + stage + 1} of ${run.steps} along K.`,
    done: () => `The tensor cores are done with stage ${stage}.`,
  };
  return told[kind]();
}

// One row per warp and per stage; a column per event.
function picture(run, states, place) {
  const names = [...Array.from({ length: run.producer + 1 }, (_, warp) => (warp === run.producer ? "producer" : `consumer ${warp}`)).reverse(), ...Array.from({ length: run.stages }, (_, stage) => `stage ${stage}`)];
  const x = (event) => LEFT + (event / states.length) * (WIDTH - LEFT - 4), rows = names.length, parts = names.map((name, row) => shape("text", { x: LEFT - 6, y: TOP + ROW * row + 14, "text-anchor": "end" }, name));
  const kindOf = (row, { warps, stages }) => (row <= run.producer ? (warps[run.producer - row] ? "waits" : "runs") : CLASSES[stages[row - run.producer - 1].state] ?? "");
  for (let row = 0; row < rows; row++) {
    for (let from = 0, to; from < states.length; from = to) {
      const kind = kindOf(row, states[from]);
      for (to = from + 1; to < states.length && kindOf(row, states[to]) === kind; to++);
      if (kind) parts.push(shape("rect", { class: kind, x: x(from), y: TOP + ROW * row + 2, width: x(to) - x(from), height: ROW - 4 }));
    }
  }
  parts.push(shape("line", { class: "moment", x1: x(place + 0.5), x2: x(place + 0.5), y1: 0, y2: TOP + ROW * rows + 2 }));
  const caption = `Warps and stages over ${states.length - 1} events`;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${TOP + ROW * rows + 6}`, role: "img", "aria-label": caption }, shape("title", {}, caption), ...parts);
}

function stageTable(run, { stages, barriers }) {
  const barrier = ([completed, pending, bytes]) => `phase ${completed}, parity ${completed % 2}; lacks ${pending} arrival${pending === 1 ? "" : "s"}${bytes ? ` and ${sizes(bytes)}` : ""}`;
  return table("The ring", ["stage", "holds", "“full”", "“empty”"], stages.map(({ state, round }, stage) =>
    [String(stage), state === EMPTY ? EMPTY : `${state}: step ${round * run.stages + stage + 1}`, barrier(barriers[stage]), barrier(barriers[run.stages + stage])]));
}

function warpTable(run, { warps }) {
  const doing = (waited) => (waited ? `waits for “${barrierName(run, waited[0])[0]}” of stage ${waited[0] % run.stages}` : "runs");
  return table("The warps", ["warp", "does"], warps.map((waited, warp) => [`${warp}, ${warp === run.producer ? "producer" : "consumer"}`, doing(waited)]));
}

async function start(place) {
  const loaded = await fetch(new URL("pipeline-run.json", import.meta.url));
  if (!loaded.ok) throw new Error(`pipeline-run.json could not be loaded (${loaded.status}).`);
  const run = await loaded.json(), states = statesOf(run), last = states.length - 1;
  let step = 0;
  const said = element("p", { class: "verdict", role: "status" }), drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Timeline" }), facts = element("div", {});
  const slider = element("input", { id: "event", type: "range", min: 0, max: last, step: 1, value: 0 }), shownStep = element("output", { for: "event" });
  const buttons = Object.fromEntries([["first", "First"], ["back", "Back"], ["forward", "Forward"], ["last", "Last"]].map(([id, text]) => [id, element("button", { id, type: "button", class: "md-button" }, text)]));
  const go = (to) => {
    step = Math.min(last, Math.max(0, to));
    slider.value = step;
    shownStep.textContent = `${step} of ${last}`;
    slider.setAttribute("aria-valuetext", shownStep.textContent);
    said.textContent = tell(run, step);
    drawn.replaceChildren(picture(run, states, step));
    facts.replaceChildren(stageTable(run, states[step]), warpTable(run, states[step]));
    // aria-disabled and not disabled: a button that is pressed must not lose the focus at the end of the events.
    for (const [id, off] of [["first", step === 0], ["back", step === 0], ["forward", step === last], ["last", step === last]]) buttons[id].setAttribute("aria-disabled", String(off));
  };
  slider.oninput = () => go(Number(slider.value));
  Object.entries({ first: () => go(0), back: () => go(step - 1), forward: () => go(step + 1), last: () => go(last) }).forEach(([id, act]) => { buttons[id].onclick = act; });
  const stepper = element("div", { class: "stepper", role: "group", "aria-label": "Events" }, ...Object.values(buttons));
  stepper.onkeydown = (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key in moves) { event.preventDefault(); go(step + moves[event.key]); }
  };
  const legend = element("ul", { class: "legend" }, ...[["runs", "a warp runs"], ["waits", "a warp waits for a barrier"], ["filling", "copies under way"], ["full", "full"], ["in-use", "in use"]].map(([kind, text]) =>
    element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${text}`)));
  place.replaceChildren(element("div", { class: "field" }, element("label", { for: "event" }, "Event"), slider, shownStep), stepper, said, drawn, legend, facts);
  go(0);
}

const place = document.getElementById("pipeline");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
