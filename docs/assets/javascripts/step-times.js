/* What each kernel of a traced step adds to its time: the rule of minllm/bench/serving/profile/steps.py. No document is touched here.
 *
 * events: [name, stage, begin, end], sorted by their end, in microseconds from the end of the step before. A copy adds nothing. */

export const COPIES = "copies";

/* [{ name, stage, begin, end, adds, overlaps, isCopy }]: adds counts from the end of the kernel that ended before, without the time in which no kernel runs; overlaps, the time
 * in which a kernel that ended earlier was running too. */
export function kernelsOf(events) {
  const kernels = events.filter(([, stage]) => stage !== COPIES), firstBegins = kernels.map(([, , begin]) => begin);
  for (let place = kernels.length - 2; place >= 0; place--) firstBegins[place] = Math.min(firstBegins[place], firstBegins[place + 1]);
  let before = 0;
  const adds = new Map(), overlaps = new Map();
  kernels.forEach((event, place) => {
    const [, , begin, end] = event;
    adds.set(event, end - Math.max(before, firstBegins[place]));
    overlaps.set(event, Math.max(0, before - begin));
    before = end;
  });
  return events.map((event) => ({ name: event[0], stage: event[1], begin: event[2], end: event[3], adds: adds.get(event) ?? 0, overlaps: overlaps.get(event) ?? 0, isCopy: event[1] === COPIES }));
}

// { stage: microseconds } and the time without a kernel.
export function totals(kernels, time) {
  const stages = {};
  for (const { stage, adds, isCopy } of kernels) if (!isCopy) stages[stage] = (stages[stage] ?? 0) + adds;
  return { stages, idle: time - Object.values(stages).reduce((sum, one) => sum + one, 0) };
}
