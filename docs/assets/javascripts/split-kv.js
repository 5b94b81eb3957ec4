/* How split_kv divides a decode step over the SMs: the rules of minllm/kernels/attention/split_kv (choice.py, merge.py, rows.py), for 16-bit caches.
 * No document is touched here. */

export const MAX_SPLITS = 256, BLOCKS_PER_SM = 3;
const HEADS_PER_BLOCK = 8, WARPS = 4, LANES = 32, ELEMENTS = 8;
const LEAST_USE = 0.85; // of the best number of splits

// [blocks that share the query heads of a KV head, query heads per block]
export function headTiles(group) {
  const tiles = Math.ceil(group / HEADS_PER_BLOCK);
  return [tiles, Math.ceil(group / tiles)];
}

// How full `waves` waves of blocks are: whole ones take the time.
export const useOfSlots = (blocks, slots) => blocks / slots / Math.ceil(blocks / slots);

// The kernel's own number of splits: the fewest within 15 % of the best use of the slots.
export function chooseSplits({ sequences, kvHeads, group, context, sms }) {
  const slots = BLOCKS_PER_SM * sms, blocks = Math.max(1, sequences * kvHeads * headTiles(group)[0]);
  const limit = Math.max(1, Math.min(MAX_SPLITS, Math.ceil(context / 64), Math.ceil(slots / blocks)));
  const uses = Array.from({ length: limit }, (_, before) => useOfSlots((before + 1) * blocks, slots)), best = Math.max(...uses);
  return 1 + uses.findIndex((use) => use >= LEAST_USE * best);
}

// Keys that a block processes per step of its loop: shares are multiples of it.
export function keysPerStep(headDim, group) {
  const chunks = headDim / ELEMENTS, lanes = Math.min(LANES, 2 ** Math.ceil(Math.log2(chunks)));
  return WARPS * (LANES / lanes) * (headTiles(group)[1] <= 4 ? 4 : 2);
}

// The keys of each split of a context; those of the last may be fewer, or none.
export function shares(context, splits, step) {
  const share = Math.ceil(Math.ceil(context / splits) / step) * step;
  return Array.from({ length: splits }, (_, split) => Math.max(0, Math.min((split + 1) * share, context) - split * share));
}

/* Blocks in the order of their indices, split first, then head, then sequence; each starts on the slot that is free first, and takes as long as it has
 * keys: [{ split, head, sequence, slot, start, end }]. */
export function schedule({ sequences, kvHeads, group, context, sms, headDim }, splits) {
  const slots = BLOCKS_PER_SM * sms, keys = shares(context, splits, keysPerStep(headDim, group)), free = new FreeSlots(slots), blocks = [];
  for (let sequence = 0; sequence < sequences; sequence++) {
    for (let head = 0; head < kvHeads * headTiles(group)[0]; head++) {
      for (let split = 0; split < splits; split++) {
        const { slot, at } = free.take();
        blocks.push({ split, head, sequence, slot, start: at, end: at + keys[split] });
        free.give(slot, at + keys[split]);
      }
    }
  }
  return blocks;
}

// A heap of slots by the time when they are free, and by number where that is equal. Slot n lies on SM n mod sms: the first blocks go to different SMs.
class FreeSlots {
  constructor(count) {
    this.heap = Array.from({ length: count }, (_, slot) => ({ slot, at: 0 }));
  }

  before(one, other) {
    const [a, b] = [this.heap[one], this.heap[other]];
    return a.at < b.at || (a.at === b.at && a.slot < b.slot);
  }

  swap(one, other) {
    [this.heap[one], this.heap[other]] = [this.heap[other], this.heap[one]];
  }

  take() {
    this.swap(0, this.heap.length - 1);
    const taken = this.heap.pop();
    for (let place = 0; ;) {
      const children = [2 * place + 1, 2 * place + 2].filter((child) => child < this.heap.length), least = children.reduce((best, child) => (this.before(child, best) ? child : best), place);
      if (least === place) return taken;
      this.swap(place, least);
      place = least;
    }
  }

  give(slot, at) {
    let place = this.heap.push({ slot, at }) - 1;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!this.before(place, parent)) return;
      this.swap(place, parent);
      place = parent;
    }
  }
}
