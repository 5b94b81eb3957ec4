/* What warps and stages do after each event of a recorded pipeline (pipeline-run.json). No document is touched here.
 *
 * An event is [kind, warp, barrier, phase, bytes, states]; barriers 0 to stages - 1 are "full", the others "empty"; states are those of all barriers after
 * the event: [completed phases, arrivals missing, bytes missing]. */

export const EMPTY = "empty", FILLING = "filling", FULL = "full", IN_USE = "in use";

// Names a barrier: ["full", stage] or ["empty", stage].
export const barrierName = (run, barrier) => [barrier < run.stages ? "full" : "empty", barrier % run.stages];

/* [{ warps: [null, or [barrier, phase] that the warp waits for], stages: [{ state, round }], barriers }], first before any event, then after each. */
export function statesOf(run) {
  const initial = run.events[0][5].map(([, pending]) => [0, pending, 0]);
  let now = { warps: Array(run.producer + 1).fill(null), stages: Array.from({ length: run.stages }, () => ({ state: EMPTY, round: -1 })), barriers: initial };
  return [now, ...run.events.map((event) => (now = after(run, now, event)))];
}

function after(run, before, [kind, warp, barrier, phase, , barriers]) {
  const warps = [...before.warps], stages = [...before.stages], stage = barrier % run.stages, is = (state) => { stages[stage] = { state, round: phase }; };
  if (kind === "wait") warps[warp] = [barrier, phase];
  if (kind === "pass") warps[warp] = null;
  if (kind === "copy") is(FILLING);
  if (kind === "land" && barriers[barrier][0] > phase) is(FULL);
  if (kind === "use") is(IN_USE);
  if (kind === "arrive" && barrier >= run.stages && barriers[barrier][0] > phase) is(EMPTY);
  return { warps, stages, barriers };
}
