/* FlashAttention tile by tile: the running maximum, sum and output of one query, a step at a time. The states are online-softmax.js's. */

import { choice, element } from "./form-fields.js";
import { plainAttention, states } from "./online-softmax.js";

const EXAMPLES = {
  rising: ["the maximum keeps rising", [0.5, 1.2, 0.3, 2.1, 1.0, 3.4, 2.9, 3.0]],
  falling: ["the largest score comes first", [3.4, 1.2, 0.3, 2.1, 1.0, 0.5, -1.0, 0.0]],
  huge: ["huge scores: without the maximum, exp overflows", [710, 705, 712, 700, 711, 709, 713, 708]],
  equal: ["all scores equal: the output is the mean", [1, 1, 1, 1, 1, 1, 1, 1]],
};
const VALUES = [[1, 0], [0, 1], [2, 1], [-1, 3], [0.5, 0.5], [4, -2], [1, 2], [-2, 1]];

const shown = (value) => (value === -Infinity ? "−∞" : value === Infinity ? "∞" : Number(value.toFixed(4)).toString().replace("-", "−"));
const vector = (numbers) => `(${numbers.map(shown).join(", ")})`;

function explain(state, scores) {
  if (state.kind === "start") return "Nothing seen yet: the maximum m is −∞, the sum l and the output o are 0.";
  if (state.kind === "divide") return "All tiles are done. One division by l at the very end: o / l is the attention's output.";
  const [first, last] = state.tile, keys = `keys ${first + 1} to ${last}`;
  if (state.kind === "scores") return `Load ${keys}. Their scores q · k are ${scores.slice(first, last).map(shown).join(", ")}.`;
  if (state.kind === "rescale") {
    return state.before === state.m
      ? `The maximum stays ${shown(state.m)}, so the factor exp(m old − m new) is 1 and nothing is rescaled.`
      : `The maximum rises from ${shown(state.before)} to ${shown(state.m)}: what was summed so far is multiplied by exp(m old − m new) = ${shown(state.factor)}.`;
  }
  return `Add ${keys}: each weight is exp(score − m). l grows by the weights, o by the weights times the values.`;
}

function keyCell(score, index, state) {
  const inTile = state.tile && index >= state.tile[0] && index < state.tile[1];
  const done = state.kind === "divide" || (state.tile && index < state.tile[0]);
  const weight = inTile && state.kind === "add" ? shown(state.weights[index - state.tile[0]]) : " ";
  return element("li", { class: inTile ? "score-cell now" : done ? "score-cell done" : "score-cell", "aria-current": inTile ? "true" : null },
    element("span", { class: "small" }, `key ${index + 1}`), element("strong", {}, shown(score)),
    element("span", { class: "small" }, `v ${vector(VALUES[index])}`), element("span", { class: "small weight" }, inTile && state.kind === "add" ? `weight ${weight}` : " "));
}

function facts(state) {
  const rows = [["m, the running maximum", shown(state.m)], ["rescale factor", state.factor === null ? "–" : shown(state.factor)],
    ["l, the running sum", shown(state.l)], [state.kind === "divide" ? "o / l, the result" : "o, the output before division", vector(state.output)]];
  return element("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function comparison(state, scores) {
  const plain = plainAttention(scores, VALUES), naive = scores.reduce((sum, score) => sum + Math.fround(Math.exp(score)), 0);
  const same = plain.every((number, d) => Math.abs(number - state.output[d]) < 1e-12);
  const overflow = Number.isFinite(naive) ? "" : " Without subtracting a maximum, exp of these scores is infinite in float32, and the result not a number.";
  return `The softmax over all scores at once gives ${vector(plain)}: ${same ? "the same" : "not the same"}.${overflow}`;
}

function start(place) {
  let step = 0, passed = [], scores = [];
  const keys = element("ol", { class: "key-row", "aria-label": "Keys, in tiles" });
  const said = element("p", { class: "verdict", role: "status" }), numbers = element("div", {}), final = element("p", {});
  const buttons = Object.fromEntries([["first", "First"], ["back", "Back"], ["forward", "Forward"], ["last", "Last"]].map(([id, text]) =>
    [id, element("button", { id, type: "button", class: "md-button" }, text)]));
  const show = () => {
    const state = passed[step];
    keys.replaceChildren(...scores.map((score, index) => keyCell(score, index, state)));
    said.textContent = `Step ${step} of ${passed.length - 1}. ${explain(state, scores)}`;
    numbers.replaceChildren(facts(state));
    final.textContent = state.kind === "divide" ? comparison(state, scores) : "";
    // aria-disabled and not disabled: a button that is pressed must not lose the focus at the end of the steps.
    for (const [id, off] of [["first", step === 0], ["back", step === 0], ["forward", step === passed.length - 1], ["last", step === passed.length - 1]]) {
      buttons[id].setAttribute("aria-disabled", String(off));
    }
  };
  const go = (to) => { step = Math.min(passed.length - 1, Math.max(0, to)); show(); };
  const begin = () => {
    scores = EXAMPLES[fields.example.value()][1];
    passed = states(scores, VALUES, Number(fields.tile.value()));
    go(0);
  };
  const fields = {
    example: choice("example", "Scores", Object.entries(EXAMPLES).map(([name, [text]]) => [name, text]), "rising", begin),
    tile: choice("tile", "Keys in a tile", [1, 2, 3, 4, 8].map((size) => [String(size), String(size)]), "2", begin),
  };
  buttons.first.onclick = () => go(0);
  buttons.back.onclick = () => go(step - 1);
  buttons.forward.onclick = () => go(step + 1);
  buttons.last.onclick = () => go(passed.length - 1);
  const stepper = element("div", { class: "stepper", role: "group", "aria-label": "Steps" }, ...Object.values(buttons));
  stepper.onkeydown = (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key in moves) { event.preventDefault(); go(step + moves[event.key]); }
  };
  place.replaceChildren(element("div", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), stepper, said, keys, numbers, final);
  begin();
}

const place = document.getElementById("flash-attention-tiles");
if (place) start(place);
