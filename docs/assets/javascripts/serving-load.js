/* The page about serving: recorded requests of a server under load, a line each, and what all loads of that server gave. */

import { keepInAddress } from "./address-state.js";
import { PICTURE_WIDTH, choice, element, figures, shape, table } from "./form-fields.js";
import { kindsOf, metrics } from "./served-runs.js";

const WIDTH = PICTURE_WIDTH, LEFT = 92, RIGHT = 16, TOP = 6, ROW = 11;
const milliseconds = (value) => (value === null ? "–" : value < 1000 ? `${figures(value)} ms` : `${figures(value / 1000)} s`);
const NAMES = { a: "user A", b: "user B" };
const named = (kind) => NAMES[kind] ?? kind;

function picture(requests, deadline) {
  const end = Math.max(...requests.map(([, , , last]) => last)), bottom = TOP + ROW * requests.length;
  const x = (time) => LEFT + (time / end) * (WIDTH - LEFT - RIGHT), parts = [shape("title", {}, "Requests: waiting, then answered")];
  for (let tick = 0; tick <= 4; tick++) {
    const at = x((tick / 4) * end);
    parts.push(shape("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: bottom }));
    parts.push(shape("text", { x: at, y: bottom + 15, "text-anchor": tick === 4 ? "end" : tick === 0 ? "start" : "middle" }, milliseconds((tick / 4) * end)));
  }
  requests.forEach(([kind, arrival, first, last], lane) => {
    const y = TOP + ROW * lane, hint = first === null ? `refused at ${milliseconds(arrival)}` : `arrives at ${milliseconds(arrival)}, first token after ${milliseconds(first - arrival)}, last after ${milliseconds(last - arrival)}${last - arrival > deadline ? ": late" : ""}`;
    const title = () => shape("title", {}, `${lane + 1}, ${named(kind)}: ${hint}`);
    if (lane % 4 === 0 || kind === "document") parts.push(shape("text", { x: LEFT - 6, y: y + 9, "text-anchor": "end" }, `${lane + 1} ${named(kind)}`));
    if (first === null) {
      parts.push(shape("circle", { class: "prefill", cx: x(arrival), cy: y + 5, r: 4 }, title()));
      return;
    }
    parts.push(shape("line", { class: "waiting", x1: x(arrival), x2: x(first), y1: y + 5, y2: y + 5 }));
    parts.push(shape("rect", { class: kind === "document" || kind === "b" ? "prefill" : "decode", x: x(first), y: y + 1, height: ROW - 3, width: Math.max(1, x(last) - x(first)) }, title()));
  });
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${bottom + 24}`, role: "img", "aria-label": `Timeline of ${requests.length} requests` }, ...parts);
}

function rowsOf(runs, deadline) {
  return runs.flatMap(({ load, requests }) => kindsOf(requests).map((kind) => {
    const found = metrics(requests.filter(([one]) => one === kind), deadline);
    return [`${figures(100 * load)} %, ${named(kind)}`, milliseconds(found.p50), milliseconds(found.p99), `${found.refused} of ${found.count}`, `${found.inTime} of ${found.count}`];
  }));
}

async function start(place) {
  const loaded = await fetch(new URL("../../results/serving_runs.json", import.meta.url));
  if (!loaded.ok) throw new Error(`serving_runs.json could not be loaded (${loaded.status}).`);
  const record = await loaded.json(), deadline = record.deadline_ms, servers = [...new Set(record.rows.map((run) => run.case))];
  const said = element("p", { class: "verdict", role: "status" }), answer = element("div", { class: "answer" });
  const drawn = element("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Timeline" });
  const show = () => {
    const runs = record.rows.filter((run) => run.case === fields.server.value()), run = runs.find(({ load }) => String(load) === fields.load.value());
    const found = metrics(run.requests, deadline), rate = figures(run.load * record.requests_per_second);
    said.textContent = `${rate} requests/s: half of the first tokens come within ${milliseconds(found.p50)}, 99 of 100 within ${milliseconds(found.p99)}. `
      + `${found.refused} of ${found.count} requests are refused, ${found.inTime} end within ${milliseconds(deadline)}.`;
    drawn.replaceChildren(picture(run.requests, deadline));
    answer.replaceChildren(table(`${run.case}: all loads`, ["load, kind", "TTFT p50", "TTFT p99", "refused", `within ${milliseconds(deadline)}`], rowsOf(runs, deadline)));
    address.write();
  };
  const loads = [...new Set(record.rows.map((run) => String(run.load)))].map((load) => [load, `${figures(100 * load)} % of what it can serve`]);
  const fields = { server: choice("server", "Server", servers.map((name) => [name, name]), servers[0], show), load: choice("load", "Load", loads, "1.2", show) };
  const address = keepInAddress(fields), refused = element("p", { class: "bad", role: "alert" }, address.read());
  const legend = element("ul", { class: "legend" }, ...[["free", "waiting for the first token"], ["weights", "tokens arrive"], ["cache", "tokens of a document or of user B; a dot: refused"]].map(([kind, text]) =>
    element("li", {}, element("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${text}`)));
  const run = element("p", {}, `Recorded by tools/record_serving_runs.py on ${record.device}, ${record.date}, commit ${record.commit.slice(0, 7)}.`);
  place.replaceChildren(element("form", { class: "fields" }, fields.server.node, fields.load.node), refused, said, legend, drawn, answer, run);
  place.querySelector("form").onsubmit = (event) => event.preventDefault();
  show();
}

const place = document.getElementById("serving-load");
if (place) start(place).catch((error) => place.replaceChildren(element("p", { class: "verdict bad", role: "alert" }, error.message)));
