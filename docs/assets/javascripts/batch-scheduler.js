/* The scheduler of minllm/engine/scheduling with its policies, on a virtual clock as in minllm/bench/serving/simulated.py. No document is touched
 * here; tests/javascript holds its steps against the package's, span by span.
 *
 * There is no KV cache, so nobody is preempted, and a step is planned when the one before it has ended. */

// What each policy computes first: functions of the scheduler and an empty step.
export const POLICIES = {
  split_fuse: (scheduler, step) => { scheduler.decode(step); scheduler.prefill(step); },
  in_flight: (scheduler, step) => { scheduler.decode(step); scheduler.prefill(step, { whole: true }); },
  prefill_first: (scheduler, step) => {
    scheduler.prefill(step, { whole: true });
    if (!step.length) scheduler.decode(step);
  },
  static: (scheduler, step) => {
    scheduler.isForming ||= !scheduler.running.length;
    scheduler.prefill(step, { admits: scheduler.isForming });
    if (!step.length) {
      scheduler.isForming = false;
      scheduler.decode(step);
    }
  },
};

export class BatchScheduler {
  constructor(policy, maxSeqs, budget) {
    Object.assign(this, { plan: POLICIES[policy], maxSeqs, budget, waiting: [], running: [], isForming: true });
  }

  // request: { name, prompt, output }, numbers of tokens.
  add(request) {
    this.waiting.push({ ...request, computed: 0, made: 0 });
  }

  // The next step: spans { sequence, start, length, decodes, samples }, decodes first.
  schedule() {
    const step = [];
    this.plan(this, step);
    return step;
  }

  decode(step) {
    for (const sequence of this.running) {
      if (sequence.computed < sequence.prompt) continue;
      step.push({ sequence, start: sequence.computed, length: 1, decodes: true, samples: true });
      sequence.computed += 1;
    }
  }

  // Prompts up to the token budget: first those that have begun, then waiting ones as long as there are slots.
  prefill(step, { admits = true, whole = false } = {}) {
    let budget = Math.max(1, this.budget - step.reduce((tokens, span) => tokens + span.length, 0));
    for (const sequence of this.running) {
      if (budget && sequence.computed < sequence.prompt) budget -= this.addChunk(sequence, budget, step);
    }
    while (admits && budget && this.running.length < this.maxSeqs && this.waiting.length) {
      if (whole && budget < this.waiting[0].prompt && this.waiting[0].prompt <= this.budget && step.length) break;
      const sequence = this.waiting.shift();
      this.running.push(sequence);
      budget -= this.addChunk(sequence, budget, step);
    }
  }

  addChunk(sequence, budget, step) {
    const start = sequence.computed, length = Math.min(budget, sequence.prompt - start);
    sequence.computed += length;
    step.push({ sequence, start, length, decodes: false, samples: sequence.computed === sequence.prompt });
    return length;
  }

  // Sequences get their tokens; those that end leave.
  take(step) {
    for (const { sequence, samples } of step) sequence.made += samples;
    this.running = this.running.filter((sequence) => sequence.made < sequence.output);
  }
}

/* Serves requests { prompt, output, arrival }, sorted by arrival. seconds(contexts, chunks, rows): what a step takes. Returns the steps
 * { begin, end, spans: [request's number, start, length, decodes] } and for each request the times of its tokens. */
export function simulate(seconds, requests, { policy, maxSeqs, budget }) {
  const scheduler = new BatchScheduler(policy, maxSeqs, budget), tokens = requests.map(() => []), steps = [];
  let clock = 0, due = 0;
  while (due < requests.length || scheduler.waiting.length || scheduler.running.length) {
    while (due < requests.length && requests[due].arrival <= clock) scheduler.add({ ...requests[due], name: due++ });
    const step = scheduler.schedule();
    if (!step.length) {
      clock += Math.max(0, requests[due].arrival - clock);
      continue;
    }
    const begin = clock;
    clock += seconds(step.filter((span) => span.decodes).map((span) => span.start + 1),
      step.filter((span) => !span.decodes).map((span) => [span.start, span.length]), step.filter((span) => span.samples).length);
    scheduler.take(step);
    for (const { sequence, samples } of step) if (samples) tokens[sequence.name].push(clock);
    steps.push({ begin, end: clock, spans: step.map((span) => [span.sequence.name, span.start, span.length, span.decodes]) });
  }
  return { steps, tokens };
}

/* What clients see, in seconds: { ttft, tpot, itl: each { mean, p99 } or null, throughput: output tokens per second }. The definitions are those of
 * minllm/bench/serving/metrics.py. */
export function metrics(requests, tokens) {
  const ttft = tokens.map((times, i) => times[0] - requests[i].arrival), long = tokens.filter((times) => times.length > 1);
  const tpot = long.map((times) => (times.at(-1) - times[0]) / (times.length - 1));
  const itl = long.flatMap((times) => times.slice(1).map((time, i) => time - times[i]));
  return { ttft: distribution(ttft), tpot: distribution(tpot), itl: distribution(itl),
    throughput: tokens.flat().length / tokens.reduce((last, times) => Math.max(last, times.at(-1)), 0) };
}

function distribution(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b), place = 0.99 * (sorted.length - 1), below = Math.floor(place);
  const above = sorted[Math.min(below + 1, sorted.length - 1)];
  return { mean: values.reduce((total, value) => total + value, 0) / values.length, p99: sorted[below] + (place - below) * (above - sorted[below]) };
}

// `count` requests that arrive at random, `rate` per second: a Poisson process. lengths: prompts to choose from; outputs: [least, most].
export function randomRequests(count, rate, lengths, [least, most], seed = 1) {
  let state = seed;
  const random = () => { // mulberry32
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  let arrival = 0;
  return Array.from({ length: count }, () => {
    arrival -= Math.log(1 - random()) / rate;
    return { prompt: lengths[Math.floor(random() * lengths.length)], output: least + Math.floor(random() * (most - least + 1)), arrival };
  });
}
