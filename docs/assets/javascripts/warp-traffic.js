/* What one request of a warp costs: the rules of minllm/sim/traffic.py. accesses: [{ lane, start, width }], in bytes. No document is touched here. */

export const SECTOR_BYTES = 32, BANKS = 32, BANK_BYTES = 4;

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, step) => from + step);

// The numbers of the 32-byte sectors of global memory that a request touches, in order.
export function sectors(accesses) {
  const touched = new Set();
  for (const { start, width } of accesses) range(Math.floor(start / SECTOR_BYTES), Math.floor((start + width - 1) / SECTOR_BYTES)).forEach((sector) => touched.add(sector));
  return [...touched].sort((one, other) => one - other);
}

// How many lanes shared memory serves at once: 128 bytes at most.
export const lanesServedTogether = (width) => Math.max(1, Math.min(32, Math.floor((BANKS * BANK_BYTES) / width)));

/* The words of shared memory that each group of lanes wants, by bank: [Map of bank -> [{ word, lanes }]]. A bank serves one word per turn, to all
 * lanes that want it, so a group takes as many turns as its busiest bank has words. */
export function banks(accesses) {
  const together = lanesServedTogether(Math.max(...accesses.map(({ width }) => width))), groups = new Map();
  for (const { lane, start, width } of accesses) {
    const number = Math.floor(lane / together);
    if (!groups.has(number)) groups.set(number, new Map());
    for (const word of range(Math.floor(start / BANK_BYTES), Math.floor((start + width - 1) / BANK_BYTES))) {
      const wanted = groups.get(number), bank = word % BANKS;
      if (!wanted.has(bank)) wanted.set(bank, []);
      const same = wanted.get(bank).find((one) => one.word === word);
      if (same) same.lanes.push(lane);
      else wanted.get(bank).push({ word, lanes: [lane] });
    }
  }
  return [...groups.values()];
}

// The turns of each group of lanes that is served at once.
export const turns = (accesses) => banks(accesses).map((group) => Math.max(...[...group.values()].map((words) => words.length)));
