"""The ladder for the counting sort of a mixture of experts: the pairs of a token and an expert, in the order of experts."""

import functools
import tempfile
from pathlib import Path

import numpy as np

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.sim import unwritten

UNWRITTEN_PAIR = -7  # poison, as int32 has no NaN
SHAPE = dict(
    model_type="qwen3_moe", vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    max_position_embeddings=64, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
)  # fmt: skip


def sorted_right(sort, expert_ids, experts):
    """Check the sort of expert_ids [T, k]."""
    expert_ids = np.int32(expert_ids)
    right, bounds = sort_by_expert_reference(expert_ids, experts)
    pairs, offsets = np.full(right.shape, UNWRITTEN_PAIR, np.int32), np.full(bounds.shape, UNWRITTEN_PAIR, np.int32)
    sort(expert_ids, pairs, offsets)
    begins = np.repeat(bounds[:-1], np.diff(bounds))  # where the expert of each place begins
    last_first = begins + np.repeat(bounds[1:], np.diff(bounds)) - 1 - np.arange(len(right))
    expect("offsets", offsets, bounds, ("expert",))
    expect("pairs", pairs, right, ("place",), [
        ("the place counts from `first`, and a lane's is the number of own pairs in the lanes before it, without its own.",
         np.concatenate([[UNWRITTEN_PAIR], right[:-1]])),
        ("an expert's pairs are in descending order: count the lanes before this one, not those behind it.", right[last_first]),
    ])  # fmt: skip


def of(*expert_ids, experts):
    """The rung that sorts these choices, one row per token."""
    return lambda sort: sorted_right(sort, expert_ids, experts)


def many(tokens, chosen, experts):
    """The rung that sorts random choices."""
    order = np.random.default_rng(tokens).random((tokens, experts)).argsort(axis=1)
    return lambda sort: sorted_right(sort, order[:, :chosen], experts)


def writes(sort):
    """Check that each place is written once."""
    expert_ids = np.random.default_rng(0).integers(0, 3, (20, 2)).astype(np.int32)
    pairs, offsets = unwritten((40,), np.int32), unwritten((4,), np.int32)
    advice = "only the lane that holds a pair of the block's expert writes it."
    expect_bytes(functools.partial(sort, expert_ids, pairs, offsets), {}, dict(pairs=pairs.nbytes, offsets=offsets.nbytes), advice)


def generates(sort):
    """Check that a small model with random weights writes the same tokens in the order of this sort, for which it was called."""
    from minllm.bench.generate import write_shape
    from minllm.engine.llm import LLM
    from minllm.engine.requests.sampling_params import SamplingParams

    params, prompt = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), [5, 9, 2, 44, 17, 3, 8]
    options, texts = dict(device="cpu", dtype="float32", max_num_seqs=1, max_model_len=32, load_format="dummy"), []
    with tempfile.TemporaryDirectory() as directory:
        write_shape(Path(directory), SHAPE)
        for variants in (None, {"sort_by_expert": sort}):
            with LLM(directory, kernel_variants=variants, **options) as llm:
                texts.append(list(llm.generate(prompt, params)[0].outputs[0].token_ids))
                sorts = dict(getattr(llm.engine.ops, "launches", {}))
    note("tokens", texts[1])
    if texts[0] != texts[1]:
        raise Mismatch(f"in the order of your sort the engine wrote the tokens {texts[1]}, and without it {texts[0]}")
    return f"your kernel sorted {sorts['sort_by_expert']} times, and the tokens stayed {texts[1]}"


EXERCISES = (
    Exercise(
        name="experts.sort",
        lesson=23,
        title="experts: a counting sort without atomics",
        module="minllm.kernels.experts.counting_sort",
        entry="sort_by_expert",
        stage="sort_by_expert",
        engine_options="--model FOLDER_OF_A_QWEN3_MOE",
        task="The counting is done: `first` is the first place for this warp's pairs of the block's `expert`. Walk from begin to end, WARP "
        "pairs at a time; lane `lane` has pair start + lane. Ask all lanes with cuda.ballot_sync(ALL_LANES, is_own) which of them have a "
        "pair of this expert (a pair at or behind `end` is none); those write their pair to pairs[first + the number of such lanes before "
        "them]. Then add the number of all such lanes to `first`.",
        hints=(
            "ballot_sync returns 32 bits, bit i for lane i. cuda.popc counts the bits that are set. Make it a uint32 first.",
            "Bits before a lane's own: own & ((uint32(1) << uint32(lane)) - uint32(1)).",
            "All lanes of the warp take part in the ballot, also those that have no pair: it stands in no if.",
        ),
        rungs=(
            Rung("three tokens, two experts", "pairs of expert 0 first, then those of expert 1.", of([1], [0], [1], experts=2)),
            Rung("two choices per token", "pair t k + i is choice i of token t.", of([1, 2], [0, 2], [2, 0], experts=3)),
            Rung("an expert without a token", "it begins where the next one does.", of([3, 0], [0, 3], experts=5)),
            Rung("more than a warp", "each warp has its part of the pairs, up to `end`.", many(50, 3, 7)),
            Rung("more than a warp at a time", "`first` moves on between the rounds.", many(131, 4, 5)),
            Rung("writes", "each place is written once.", writes),
            Rung("your kernel in the engine", "a small model of random weights, whose tokens stay the same.", generates),
        ),
    ),
)  # fmt: skip
