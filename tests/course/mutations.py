"""Plausible wrong solutions of each exercise: what is changed in the right one, the rung that must fail, and what the message must say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in the exercise's lines; the ladder fails at `rung`, and says `says`."""

    exercise: str
    old: str
    new: str
    rung: str
    says: str = ""

    def __str__(self):
        return f"{self.exercise}: {self.old.strip()} -> {self.new.strip()}"


def of(exercise, *changes):
    """(old, new, rung, says) for one exercise."""
    return [Mutation(exercise, *change) for change in changes]


MUTATIONS = [
    *of(
        "matmul.naive",
        ("weight[column, k]", "weight[k, column]", "the weight's layout", "out_features, in_features"),
        ("if row < out.shape[0] and column < out.shape[1]:", "if True:", "one element by hand", "compare the index"),
        ("if row < out.shape[0] and", "if row <= out.shape[0] and", "one element by hand", "out of bounds"),
        ("range(x.shape[1])", "range(x.shape[1] - 1)", "one element by hand", "the last element of each row"),
        ("total += float32(bias[column])", "total += float32(bias[row])", "bias", "out[token 0, feature 1]"),
        ("if bias is not None:", "if False:", "bias", "the bias was not added"),
        ("total += float32(x", "out[row, column] = total; total = out[row, column] + float32(x", "byte budget", "running sum"),
    ),
    *of(
        "normalization.rms_norm",
        ("if i < hidden:\n                load(x", "if True:\n                load(x", "one row by hand", "out of bounds"),
        ("float32(hidden) + epsilon", "float32(hidden)", "epsilon", "epsilon was left out"),
        ("libdevice.rsqrtf(", "float32(1) / (", "one row by hand", "1 / its root"),
        ("block_sum(sum_of_squares, partials) / float32(hidden)", "sum_of_squares / float32(hidden)", "epsilon", "block_sum adds up"),
        ("libdevice.rsqrtf(", "libdevice.sqrtf(", "one row by hand", "it is divided by it"),
        ("store(residual, row + i, values, at)", "pass", "residual", "not written back"),
        ("inverse_rms * weights[at + k]", "inverse_rms", "epsilon", "weight was not multiplied"),
        ("values[at + k] += addend[k]", "pass", "residual", ""),
    ),
    *of(
        "attention.split_merge",
        ("weight = ex2(split_max[sequence, head, split] - shift)", "weight = float32(1)", "other maxima", "without their weights"),
        ("total += weight * split_sum", "total += split_sum", "other maxima", "the sums were not"),
        ("split_max[sequence, head, split] - shift", "split_max[sequence, head, split]", "huge scores", ""),
        ("while split < used", "while split < splits", "empty splits", "nobody wrote"),
        ("                if dim < head_dim:", "                if True:", "one split by hand", "out of bounds"),
        ("split = warp", "split = 0", "two splits, one maximum", ""),
    ),
    *of(
        "sampling.log_softmax",
        ("x - np.where(np.isfinite(peak), peak, np.float32(0))", "x", "huge logits", ""),
        ("axis=-1, keepdims=True))", "keepdims=True))", "several rows", "every row has its own"),
        ("np.where(np.isfinite(peak), peak, np.float32(0))", "peak", "nothing allowed", "NaN"),
        ("np.log(np.exp(shifted)", "np.log2(np.exp(shifted)", "two equal logits", ""),
    ),
    *of(
        "engine.perplexity",
        ("len(token_ids) - 1", "len(token_ids)", "a uniform model", "the first has nothing before it"),
        ("np.exp(-total", "np.exp(total", "a uniform model", "the sign is missing"),
        ("first_target - begin", "1", "overlapping windows", ""),
        (".sum(dtype=np.float64)", ".sum(dtype=np.float16)", "tokens of different likelihood", ""),
    ),
    *of(
        "activation.silu",
        ("if i < intermediate:", "if True:", "one element by hand", "out of bounds"),
        ("intermediate + i", "i", "both halves", ""),
        ("gate_up[token, i])\n        out[token, i] = gate * sigmoid(gate) * float32(gate_up[token, intermediate + i])",
         "gate_up[token, 2 * i])\n        out[token, i] = gate * sigmoid(gate) * float32(gate_up[token, 2 * i + 1])",
         "both halves", "all gates come first"),
        ("gate * sigmoid(gate)", "sigmoid(gate)", "one element by hand", "gate * sigmoid(gate)"),
    ),
    *of(
        "embedding.lookup",
        ("embedding[row, i]", "embedding[token, i]", "one element by hand", "row token_ids[t]"),
        ("        i += BLOCK", "        i += 1", "byte budget", "every 256th element"),
        ("        i += BLOCK", "        break", "rows around the block's size", "nobody wrote this element"),
        ("position_embedding[positions[token], i]", "position_embedding[row, i]", "positions", "at positions[t]"),
    ),
    *of(
        "attention.softmax",
        ("maximum[np.isneginf(maximum)] = 0", "pass", "a row that sees nothing", "NaN"),
        ("scores -= maximum", "pass", "huge scores", ""),
        ("scores.sum(axis=-1, keepdims=True)", "scores.sum(keepdims=True)", "several rows", "every row has its own"),
        ("scores /= total", "scores = scores / total", "two equal scores", "not written into scores"),
    ),
    *of(
        "attention.scores",
        ("if first <= key and key < stop:", "if first <= key and key < stop - 1:", "one key", ""),
        ("if first <= key and key < stop:", "if first <= key:", "one key", "out of bounds"),
        ("scores[token, head, key] = total", "scores[token, head, key] = total / query.shape[2] ** 0.5", "causal", "scale twice"),
        ("key_transposed[sequence, kv_head, dim, key]", "key_transposed[sequence, head % key_transposed.shape[1], dim, "
         "key]", "grouped heads", ""),
        ("range(query.shape[2])", "range(query.shape[2] - 1)", "causal", ""),
    ),
    *of(
        "attention.weighted_values",
        ("block_tables[sequence, uint32(key) // uint32(block_size)]", "uint32(key) // "
         "uint32(block_size)", "one key", "before anybody wrote it"),
        ("range(first, stop)", "range(first, stop - 1)", "one key", ""),
        ("value_cache[block, uint32(key) % uint32(block_size)", "value_cache[block, uint32(key) // uint32(block_size)", "causal", ""),
        ("block_tables[sequence,", "block_tables[0,", "several sequences", ""),
    ),
    *of(
        "attention.merge_states",
        ("first[1] * weight1 + second[1] * weight2", "first[1] + second[1]", "other maxima", "each is relative to its own maximum"),
        ("np.where(np.isneginf(maximum), 0, maximum)", "maximum", "two states of no keys", ""),
        ("np.maximum(first[0], second[0])", "first[0]", "other maxima", ""),
        ("np.exp(first[0] - shift), np.exp(second[0] - shift)", "np.exp(first[0]), np.exp(second[0])", "equal maxima", ""),
    ),
    *of(
        "attention.flash_attention_1",
        ("kept = old_sum * ex2(old_max - shift)", "kept = old_sum", "more keys than a tile", "was not scaled"),
        ("max(old_max, warp_max(score))", "warp_max(score)", "huge scores, then small ones", ""),
        ("new_sum = kept + warp_sum(weight)", "new_sum = kept + weight", "one key", ""),
        ("ex2(score - shift)", "ex2(score)", "huge scores", ""),
    ),
    *of(
        "costs.floor_ms",
        ("max(self.memory_ms(bandwidth_tb_s), self.compute_ms(tflops) if tflops else 0.0)", "self.memory_ms(bandwidth_tb_s)",
         "bound by arithmetic", "shorter of the two"),
        ("max(self.memory_ms(bandwidth_tb_s), self.compute_ms(tflops)", "self.memory_ms(bandwidth_tb_s) + (self.compute_ms(tflops)",
         "bound by arithmetic", "not their sum"),
        ("return max", "max", "bound by memory", "nothing is returned"),
        (" if tflops else 0.0", "", "no rate given", "TypeError"),
        ("max(self.memory_ms(bandwidth_tb_s), self.compute_ms(tflops) if tflops else 0.0)", "self.bytes / bandwidth_tb_s",
         "bound by memory", "self.memory_ms reckons with both"),
    ),
    *of(
        "costs.projection",
        ("flops=2 * layers", "flops=layers", "operations", "two operations"),
        ("layers * (weight * s.matrix_item", "layers * s.tokens * (weight * s.matrix_item", "a batch", "once for the whole batch"),
        (" + outputs * bias * s.item", "", "bias", "as many numbers as the result"),
        ("s.matrix_item", "s.item", "quantised matrices", "s.matrix_item"),
        ("bias * s.item", "bias * s.matrix_item", "quantised matrices", "bias is not quantised"),
        ("(inputs + outputs)", "inputs", "activations", "the result is written"),
    ),
    *of(
        "costs.kv_bytes_per_token",
        ("key_value_width(config)", "2 * query_width(config)", "grouped heads", "KV heads only"),
        ("config.num_hidden_layers * ", "", "several layers", "every layer"),
        (" * itemsize", "", "one layer, one head", "itemsize"),
        ("key_value_width(config)", "2 * config.hidden_size", "one layer, one head", "stands for all query heads"),
    ),
    *of(
        "matmul.tiled",
        ("            cuda.syncthreads()\n            for k", "            for k", "one element by hand", "nobody wrote"),
        ("            cuda.syncthreads()  # no thread", "            # no thread", "the weight's layout", "put cuda.syncthreads() between"),
        ("first_column, first_k, thread", "first_row, first_k, thread", "sizes around the block's edge", ""),
        ("first_k += tile_k", "first_k += x.shape[1]", "the weight's layout", "only the first tile of K"),
        ("ty + i * across", "ty * per_thread + i", "the weight's layout", ""),
        ("weight_tile[k, tx + j * across]", "weight_tile[k, ty + j * across]", "the weight's layout", ""),
        ("while first_k < x.shape[1]:", "while first_k + tile_k <= x.shape[1]:", "one element by hand", ""),
    ),
    *of(
        "rope.rotate",
        ("a * cosine - b * sine", "a * cosine + b * sine", "one pair by hand", ""),
        ("cos_sin[position, pair], cos_sin[position, half + pair]", "cos_sin[position, 2 * pair], cos_sin[position, 2 * pair + 1]",
         "half-split pairs", "all cosines first"),
        ("pair + half)", "pair + x.shape[2] // 2)", "part of a head", "race on global memory"),
        ("b * cosine + a * sine", "b * cosine + float32(out[token, head, first]) * sine", "one pair by hand", "read both first"),
        ("(2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)", "(2 * pair, 2 * pair + "
         "1)", "half-split pairs", "other layout"),
        ("(2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)", "(pair, pair + half)", "interleaved pairs", "other layout"),
        ("cos_sin[position, pair], cos_sin[position, half + pair]", "cos_sin[token, pair], cos_sin[token, half + pair]", "one pair by hand",
         ""),
    ),
    *of(
        "kv.append",
        ("    if slot < 0:\n        return\n", "", "padding", "the index is negative"),
        ("slot = slot_mapping[token]", "slot = token", "the slot that is asked for", "slot_mapping[t]"),
        ("key_cache[slot, i] = key[token, i]", "key_cache[slot, i] = value[token, i]", "one token", "exchanged"),
        ("        i += BLOCK", "        break", "rows around the block's size", "more elements than the block has threads"),
    ),
    *of(
        "costs.batch_bytes",
        ("(len(lengths) - 1) * shared_blocks", "len(lengths) * shared_blocks", "a beginning of whole blocks", "not never"),
        ("min(shared_prefix, *lengths) // policy.block_size", "-(-min(shared_prefix, *lengths) // policy.block_size)",
         "a beginning that ends in a block", "only full blocks"),
        ("min(shared_prefix, *lengths)", "shared_prefix", "a short text", "no longer than the shortest"),
        ('policy.name != "paged" or ', "", "another policy", ""),
        ("policy.allocated_bytes(length, token_bytes)", "length * token_bytes", "nothing shared", "taken whole"),
    ),
    *of(
        "cache.find_prefix",
        ("                break", "                continue", "a hole", "stop at the first"),
        ("chain_root(tenant)", 'chain_root("")', "another tenant", "begins with the tenant"),
        ("return found", "return sorted(found)", "the whole text", "in the order of the text"),
        ("found.append(", "found[:] or found.append(", "the whole text", "only the first"),
    ),
    *of(
        "kv.copy_blocks",
        ("to[layer, destination, i] = cache[layer, source, i]", "to[layer, source, i] = cache[layer, destination, i]", "one block",
         "exchanged"),
        ("copies[pair, 0], copies[pair, 1]", "copies[0, 0], copies[0, 1]", "several pairs", "copies[blockIdx.y]"),
        ("cuda.blockIdx.y, cuda.blockIdx.z", "cuda.blockIdx.y, 0", "several layers", "this one's is blockIdx.z"),
        ("min(row, (cuda.blockIdx.x + 1) * PIECE)", "(cuda.blockIdx.x + 1) * PIECE", "one block", "out of bounds"),
        ("(cuda.blockIdx.x + 1) * PIECE), THREADS", "start + 1), THREADS", "more bytes than threads", "every 128th byte"),
        ("min(row, (cuda.blockIdx.x + 1) * PIECE)", "row", "byte budget", ""),
    ),
    *of(
        "quantization.quantize_groups",
        ("np.rint((by_group - zero) * inverse)", "(by_group - zero) * inverse", "a range that is not around 0", "cut, not rounded"),
        ("1 / kv_format.levels", "1 / (kv_format.levels + 1)", "one group by hand", "steps apart"),
        ("(by_group - zero) * inverse", "by_group * inverse", "a range that is not around 0", "not subtracted"),
        ("pairs[..., :1].astype(np.float32), pairs[..., 1:].astype(np.float32)",
         "((high - low) * np.float32(1 / kv_format.levels))[..., None], low[..., None]",
         "heads of several tokens", "round the pairs to float16 first"),
        ("np.clip(np.rint((by_group - zero) * inverse), 0, kv_format.levels)", "np.rint((by_group - zero) * inverse)", "rounding",
         "held between"),
    ),
    *of(
        "attention.split_kv",
        ("correction = ex2(maxima[head] - shift)", "correction = float32(1)", "more keys than a step", ""),
        ("sums[head] *= correction", "pass", "more keys than a step", ""),
        ("shift = finite_or_zero(maximum)", "shift = float32(0)", "a few keys", ""),
        ("sums[head] += weight", "sums[head] = weight", "one key", ""),
        ("shift = finite_or_zero(maximum)", "shift = maximum", "one key", ""),
    ),
    *of(
        "sampling.argmax",
        ("other_value == value and other_token < token", "False", "equal logits", "the lowest one wins"),
        ("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)", "every place", ""),
        ("other_value > value", "other_value >= value", "equal logits", ""),
    ),
    *of(
        "sampling.penalties",
        ("if x > float32(0.0):", "if True:", "a negative logit", "makes the token likelier"),
        (" or token_flags[slot, token] & IN_PROMPT", "", "the prompt counts", "tokens of the prompt"),
        ("float32(count)", "(float32(1) if count > 0 else float32(0))", "frequency", "every time"),
        ("x = x / repetition_penalty[slot]", "x = x", "a positive logit", ""),
    ),
    *of(
        "sampling.advance",
        ("            lengths[slot] += 1\n", "", "one row", "the length did not grow"),
        ("newest_tokens[slot] = token", "newest_tokens[row] = token", "rows in any slot", "stored at its row"),
        ("if slot >= 0:", "if True:", "a padding row", "such as -1 for padding"),
        ("if adjustments[slot] & PENALTIES:", "if True:", "one row", "without penalties"),
        ("if row < tokens.shape[0]:", "if True:", "one row", "out of bounds"),
    ),
    *of(
        "engine.next_size",
        ("size >= count", "size > count", "a size of its own", "4 is large enough, too"),
        ("            return size", "            return count", "between two sizes", "5 is not one of the sizes"),
        ("return None", "return size", "more than the largest", "no size is large enough"),
        ("for size in sizes:", "for size in sizes[1:]:", "one sequence", "1 is large enough, too"),
        ("for size in sizes:", "for size in (1, 2, 4, 8, 16, 32, 64):", "more than the largest", ""),
        ("for size in sizes:", "for size in sizes[:5]:", "all numbers of sequences", "was passed over"),
    ),
    *of(
        "scheduling.split_fuse",
        ("        scheduler.decode(step)\n        scheduler.prefill(step)\n",
         "        scheduler.prefill(step)\n        scheduler.decode(step)\n", "one request", "has yet to sample"),
        ("        scheduler.prefill(step)\n", "        if not step.spans:\n            scheduler.prefill(step)\n",
         "a prompt beside a decode", "share a step"),
        ("        scheduler.decode(step)\n        scheduler.prefill(step)\n",
         "        scheduler.prefill(step)\n        if not step.spans:\n            scheduler.decode(step)\n", "a prompt beside a decode",
         "had to wait for b's prompt"),
        ("scheduler.prefill(step)", "scheduler.prefill(step, whole=True)", "short prompts are fused", "whole=True is in-flight"),
        ("        scheduler.decode(step)\n", "", "one request", "nobody who runs gets a token"),
        ("scheduler.prefill(step)", "scheduler.prefill(step, admits=False)", "one request", "no waiting request is let in"),
        ("        scheduler.prefill(step)\n", "        pass\n", "one request", "no waiting request is let in"),
    ),
    *of(
        "scheduling.prefill",
        ("            if not sequence.is_prefilled:\n                budget -= self._add_chunk(sequence, budget, step)\n",
         "            if not sequence.is_prefilled:\n                self._add_chunk(sequence, budget, step)\n", "within the budget",
         "the budget does not shrink"),
        (" - step.num_tokens)", ")", "decodes count", "count against the budget"),
        ("        for sequence in [sequence for sequence in self.running if not sequence.is_prefilled]:\n            if budget:\n"
         "                budget -= self._add_chunk(sequence, budget, step)\n", "", "within the budget", "its prompt was not continued"),
        (" and self._free_slots", "", "slots", "IndexError"),
        ("max(1, self.max_num_batched_tokens - step.num_tokens)", "self.max_num_batched_tokens - step.num_tokens", "a step full of decodes",
         "starves"),
        ("too_long or ", "", "whole prompts", "whole=True was ignored"),
        (" <= self.max_num_batched_tokens and", " and", "whole prompts", "longer than any step"),
        ("admits = admits and not step.preempts", "admits = False", "within the budget", "nobody was let in"),
        ("or not self._enter(sequence)", "or self._enter(sequence)", "within the budget", ""),
    ),
    *of(
        "engine.launch_ahead",
        ("<= self.runner.steps_ahead", "< self.runner.steps_ahead", "no step ahead", "nothing was launched"),
        ("while len(self._launched)", "if len(self._launched)", "one step ahead", "the GPU had nothing to do while the host read results"),
        ("len(self._launched) <= self.runner.steps_ahead and ", "", "no step ahead", "3 steps were launched before the first was read"),
        ("len(self._launched) <= self.runner.steps_ahead and (step := self.scheduler.schedule()) is not None",
         "(step := self.scheduler.schedule()) is not None and len(self._launched) <= self.runner.steps_ahead",
         "no step ahead", "planned and never launched"),
        ("self._launched.append(", "self._launched.appendleft(", "one step ahead", "read oldest first"),
        ("self._launched.append((step, self.runner.execute(step)))",
         "results = self.runner.execute(step); [one.wait() for one in results]; self._launched.append((step, results))",
         "no step ahead", "only step() waits"),
        ("self.num_steps += 1", "pass", "the number of steps", "add 1 to self.num_steps"),
        ("except Exception", "except ValueError", "a step that cannot be launched", "must not end the others"),
        ("failed += self.scheduler.fail(step, error)", "pass", "a step that cannot be launched", "was not called"),
        ("return failed", "return []", "a step that cannot be launched", "nobody learns that they ended"),
    ),
]  # fmt: skip
