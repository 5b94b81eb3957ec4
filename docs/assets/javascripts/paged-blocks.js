/* A paged KV cache with shared prefixes and copy on write, by the rules of minllm/cache (paged.py, prefix_sharing.py and hash_chain.py). No document is
 * touched here; tests/javascript holds its block tables against the Python ones on random requests.
 *
 * A block is free, or held by one or more sequences, or idle: nobody holds it, and its tokens are kept in case a prompt begins with them. */

export class PagedBlocks {
  constructor(numBlocks, blockSize) {
    this.blockSize = blockSize;
    this.blocks = Array.from({ length: numBlocks }, () => ({ tokens: [], holders: 0, key: null }));
    this.free = this.blocks.map((_, number) => number);
    this.idle = []; // the longest idle first
    this.found = new Map(); // key of a full block and all before it -> block
    this.sequences = new Map(); // name -> { tokens, table, keyed: full blocks that were given keys }
    this.asked = this.hit = 0;
  }

  // -> { hit: tokens that were there already, taken, evicted: blocks }. Throws where there is no room, and changes nothing then.
  reserve(name, tokens) {
    const shared = this.prefixOf(tokens), revived = shared.filter((block) => this.blocks[block].holders === 0).length;
    const needed = Math.ceil(tokens.length / this.blockSize) - shared.length;
    this.checkRoom(needed + revived, name);
    for (const block of shared) this.hold(block);
    const hit = shared.length * this.blockSize;
    this.sequences.set(name, { tokens: tokens.slice(0, hit), table: shared, keyed: shared.length });
    const did = this.append(name, tokens.slice(hit));
    this.asked += tokens.length;
    this.hit += hit;
    return { hit, ...did };
  }

  // -> { taken, evicted, copied: [source, destination] or null }.
  append(name, tokens) {
    const sequence = this.sequences.get(name), known = sequence.tokens.length, size = this.blockSize, did = { taken: [], evicted: [], copied: null };
    const at = Math.floor(known / size), shared = tokens.length > 0 && at < sequence.table.length && this.blocks[sequence.table[at]].holders > 1;
    const missing = Math.ceil((known + tokens.length) / size) - sequence.table.length;
    this.checkRoom(missing + shared, name);
    if (shared) {
      const source = sequence.table[at], [own] = this.take(1, did);
      this.blocks[own].tokens = this.blocks[source].tokens.slice(0, known % size);
      sequence.table[at] = own;
      this.release(source);
      did.copied = [source, own];
    }
    sequence.table.push(...this.take(missing, did));
    for (const token of tokens) {
      this.blocks[sequence.table[Math.floor(sequence.tokens.length / size)]].tokens.push(token);
      sequence.tokens.push(token);
    }
    this.giveKeys(sequence);
    return did;
  }

  fork(parent, child) {
    const { tokens, table, keyed } = this.sequences.get(parent);
    const shared = table.slice(0, Math.ceil(tokens.length / this.blockSize));
    for (const block of shared) this.hold(block);
    this.sequences.set(child, { tokens: [...tokens], table: shared, keyed });
  }

  end(name) {
    const { table } = this.sequences.get(name);
    this.sequences.delete(name);
    for (const block of table.toReversed()) this.release(block);
  }

  // Blocks that hold the beginning of a prompt; the last token is always computed, because its logits are wanted.
  prefixOf(tokens) {
    const shared = [];
    for (let key = "", end = this.blockSize; end < tokens.length; end += this.blockSize) {
      key = this.nextKey(key, tokens.slice(end - this.blockSize, end));
      if (!this.found.has(key)) break;
      shared.push(this.found.get(key));
    }
    return shared;
  }

  // What stands for a block and everything before it; the package takes SHA-256 of the same.
  nextKey(before, tokens) {
    return JSON.stringify([before, tokens]);
  }

  // Full blocks can be found from now on. Where equal contents can be found already, the block that holds them stays the one.
  giveKeys(sequence) {
    const { tokens, table } = sequence, size = this.blockSize, full = Math.floor(tokens.length / size);
    if (full === sequence.keyed) return;
    sequence.keyed = full;
    const known = table.findLastIndex((block, i) => i < full && this.blocks[block].key !== null) + 1;
    let key = known ? this.blocks[table[known - 1]].key : "";
    for (let i = known; i < full; i++) {
      key = this.nextKey(key, tokens.slice(i * size, (i + 1) * size));
      if (this.found.has(key)) continue;
      this.found.set(key, table[i]);
      this.blocks[table[i]].key = key;
    }
  }

  checkRoom(needed, name) {
    const available = this.free.length + this.idle.length;
    if (needed > available) throw new Error(`${name} needs ${needed} more blocks and ${available} can be had: end a request first.`);
  }

  // The lowest free blocks. Where there are too few, those that have been idle the longest become free first.
  take(count, did) {
    while (this.free.length < count) {
      const block = this.idle.shift();
      this.found.delete(this.blocks[block].key);
      did.evicted.push(block);
      this.free.push(block);
    }
    const taken = this.free.sort((a, b) => a - b).splice(0, count);
    for (const block of taken) this.blocks[block] = { tokens: [], holders: 1, key: null };
    did.taken.push(...taken);
    return taken;
  }

  hold(block) {
    if (this.blocks[block].holders++ === 0) this.idle.splice(this.idle.indexOf(block), 1);
  }

  release(block) {
    const held = this.blocks[block];
    if (--held.holders) return;
    if (held.key !== null) {
      this.idle.push(block);
    } else {
      held.tokens = [];
      this.free.push(block);
    }
  }

  // "free", "idle", "held" or "shared".
  state(block) {
    const { holders, key } = this.blocks[block];
    return holders > 1 ? "shared" : holders === 1 ? "held" : key !== null ? "idle" : "free";
  }

  // Places for tokens in blocks that are held, and how many of them hold none.
  usage() {
    const held = this.blocks.filter((block) => block.holders > 0), places = held.length * this.blockSize;
    return { places, unused: places - held.reduce((total, block) => total + block.tokens.length, 0) };
  }
}
