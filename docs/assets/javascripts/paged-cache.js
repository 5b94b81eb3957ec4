/* The paged cache as a page: requests come, answer word by word, fork and end; blocks fill, are shared, copied, kept and evicted. */

import { choice, element } from "./form-fields.js";
import { PagedBlocks } from "./paged-blocks.js";

const NUM_BLOCKS = 12;
const PROMPTS = {
  sea: ["about the sea", "You are a poet . Write about the sea"],
  moon: ["about the moon: begins like the sea's", "You are a poet . Write about the moon"],
  exact: ["two full blocks of 4 exactly", "You are a poet . Sing for us"],
  other: ["about something else", "Translate into French : good morning"],
};
const ANSWER = "slowly , the light returns and nobody counts what the water has taken from the quiet shore today".split(" ");
// A walk through everything that can happen: [kind, prompt or sequence, new sequence].
const STORY = [["request", "sea"], ["word", "A"], ["word", "A"], ["word", "A"], ["word", "A"], ["request", "moon"], ["fork", "A"], ["word", "C"],
  ["word", "A"], ["end", "B"], ["end", "C"], ["request", "exact"], ["end", "D"], ["request", "exact"], ["request", "other"], ["end", "A"], ["end", "E"], ["end", "F"],
  ["request", "other"], ["fill", "G"]];

const words = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const list = (blocks) => (blocks.length === 1 ? `block ${blocks[0]}` : `blocks ${blocks.slice(0, -1).join(", ")} and ${blocks.at(-1)}`);

function tell(did) {
  const parts = [];
  if (did.copied) parts.push(`block ${did.copied[0]} is shared, so it was copied to block ${did.copied[1]} before the write (copy on write)`);
  const fresh = did.taken.filter((block) => block !== did.copied?.[1]);
  if (fresh.length) parts.push(`${list(fresh)} ${fresh.length === 1 ? "was" : "were"} taken`);
  if (did.evicted.length) parts.push(`${list(did.evicted)} had been kept the longest and lost the old contents (eviction)`);
  return parts.length ? `; ${parts.join("; ")}` : "";
}

class Play {
  constructor() {
    this.cache = new PagedBlocks(NUM_BLOCKS, 4);
    this.named = this.step = 0;
  }

  newName() {
    return String.fromCharCode(65 + (this.named++ % 26));
  }

  request(prompt) {
    const name = this.newName(), tokens = PROMPTS[prompt][1].split(" ");
    try {
      const did = this.cache.reserve(name, tokens);
      const found = did.hit ? `the first ${words(did.hit, "token")} were in the cache, and ${tokens.length - did.hit} had to be computed` : "none of its tokens was in the cache";
      return `Request ${name} has ${words(tokens.length, "token")}: ${found}${tell(did)}.`;
    } catch (error) {
      this.named--;
      throw error;
    }
  }

  word(name) {
    const answered = this.cache.sequences.get(name).tokens.length;
    const word = ANSWER[(answered + name.charCodeAt(0)) % ANSWER.length];
    return `${name} goes on with “${word}”${tell(this.cache.append(name, [word]))}.`;
  }

  fork(name) {
    const child = this.newName();
    this.cache.fork(name, child);
    return `${child} continues the same text as ${name}: both hold the same blocks, and nothing was copied.`;
  }

  end(name) {
    const table = this.cache.sequences.get(name).table, before = table.map((block) => this.cache.state(block));
    this.cache.end(name);
    const kept = table.filter((block, i) => before[i] === "held" && this.cache.state(block) === "idle");
    return `${name} has ended. ${kept.length ? `${list(kept)[0].toUpperCase()}${list(kept).slice(1)} ${kept.length === 1 ? "is" : "are"} full, and kept until the memory is needed.` : "Its blocks are free, or others hold them."}`;
  }

  fill(name) {
    let said = "";
    for (let i = 0; i < 4 * NUM_BLOCKS; i++) {
      const did = this.cache.append(name, [ANSWER[i % ANSWER.length]]);
      if (did.evicted.length) {
        said = `${name} wrote ${words(i + 1, "word")} until no block was free${tell(did)}.`;
        break;
      }
    }
    return said;
  }

  tellNext() {
    const [kind, what] = STORY[this.step++];
    return `Step ${this.step} of ${STORY.length}. ${this[kind](what)}`;
  }
}

function blockCell(cache, number) {
  const { tokens, holders } = cache.blocks[number], state = cache.state(number);
  const names = [...cache.sequences].filter(([, { table }]) => table.includes(number)).map(([name]) => name);
  const what = { free: "free", idle: "kept", held: names.join(""), shared: `${names.join(", ")}: shared by ${holders}` }[state];
  const places = Array.from({ length: cache.blockSize }, (_, i) => element("span", { class: tokens[i] === undefined ? "place empty" : "place" }, tokens[i] ?? "·"));
  return element("li", { class: `block-cell is-${state}` }, element("span", { class: "small" }, `block ${number}`), element("strong", {}, what), ...places);
}

function tables(cache) {
  const rows = [...cache.sequences].map(([name, { tokens, table }]) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, String(tokens.length)), element("td", {}, table.join(", "))));
  const head = ["sequence", "tokens", "block table"].map((text) => element("th", { scope: "col" }, text));
  return element("table", { class: "facts-table" }, element("caption", {}, "Block tables"), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function facts(cache) {
  const { places, unused } = cache.usage(), percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
  const rows = [["places in held blocks", String(places)], ["of them unused", `${unused} (${percent(unused, places)})`],
    ["prompt tokens found in the cache", `${cache.hit} of ${cache.asked} (${percent(cache.hit, cache.asked)})`]];
  return element("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function start(place) {
  let play = new Play();
  const said = element("p", { class: "verdict", role: "status" });
  const blocks = element("ol", { class: "block-row", "aria-label": "Blocks of the cache" }), rest = element("div", {});
  const buttons = {};
  const button = (id, text, act) => {
    buttons[id] = element("button", { id, type: "button", class: "md-button", onclick: () => buttons[id].getAttribute("aria-disabled") !== "true" && show(act) }, text);
  };
  const chosen = () => fields.sequence.value();
  const fields = {
    prompt: choice("prompt", "Prompt of the next request", Object.entries(PROMPTS).map(([name, [text]]) => [name, text]), "sea", () => {}),
    sequence: choice("sequence", "Sequence", [], "", () => {}),
  };
  const show = (act) => {
    try {
      said.textContent = act();
      said.className = "verdict";
    } catch (error) {
      said.textContent = error.message;
      said.className = "verdict bad";
    }
    const { cache } = play, names = [...cache.sequences.keys()], before = chosen();
    fields.sequence.node.querySelector("select").replaceChildren(...names.map((name) => element("option", { value: name, selected: name === before }, name)));
    // aria-disabled and not disabled: a button that is pressed must not lose the focus.
    for (const id of ["word", "fork", "end"]) buttons[id].setAttribute("aria-disabled", String(!names.length));
    buttons.next.setAttribute("aria-disabled", String(play.step === STORY.length));
    blocks.replaceChildren(...cache.blocks.map((_, number) => blockCell(cache, number)));
    rest.replaceChildren(facts(cache), tables(cache));
  };
  const begin = () => {
    play = new Play();
    return `An empty cache: ${NUM_BLOCKS} blocks of 4 tokens. Take the story step by step, or play yourself.`;
  };
  button("next", "Next step of the story", () => play.tellNext());
  button("request", "New request", () => { play.step = STORY.length; return play.request(fields.prompt.value()); });
  button("word", "One more word", () => { play.step = STORY.length; return play.word(chosen()); });
  button("fork", "Fork", () => { play.step = STORY.length; return play.fork(chosen()); });
  button("end", "End", () => { play.step = STORY.length; return play.end(chosen()); });
  button("again", "Begin again", begin);
  const stepper = element("div", { class: "stepper", role: "group", "aria-label": "What happens next" }, ...Object.values(buttons));
  place.replaceChildren(element("div", { class: "fields" }, ...Object.values(fields).map((field) => field.node)), stepper, said, blocks, rest);
  show(begin);
}

const place = document.getElementById("paged-cache");
if (place) start(place);
