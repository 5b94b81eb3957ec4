"""The browser's costs.js against minllm.costs and minllm.planning, on random models, GPUs and wishes."""

import random

import pytest

from minllm import costs
from minllm.costs.parallel import degrees
from minllm.costs.parameters import layer_matrices
from minllm.machine.hardware import GPUS
from minllm.models.config_reader import parse_model_config
from minllm.planning.formats import WEIGHT_FORMATS, kv_format_tables, kv_itemsize
from minllm.planning.plan import Wishes, make_plan
from tests.javascript.modules import needs_javascript, run

CASES = 200
PLAN = {
    "parameters": "parameters", "weights": "weight_bytes", "allWeights": "all_weight_bytes", "kv": "kv_bytes",
    "kvToken": "kv_bytes_per_token", "allKvToken": "all_kv_bytes_per_token", "ungroupedKvToken": "ungrouped_kv_bytes_per_token",
    "activations": "activation_bytes", "memory": "memory_bytes", "budget": "budget_bytes", "fits": "fits", "largestBatch": "largest_batch",
    "bandwidth": "bandwidth_tb_s", "bandwidthSource": "bandwidth_source", "tflops": "tflops", "tflopsSource": "tflops_source",
    "ridgeBatch": "ridge_batch", "activeParameters": "active_parameters", "touchedExperts": "touched_experts",
    "maxTokens": "max_num_batched_tokens",
}  # fmt: skip
FLOOR = {
    "bytes": "bytes", "flops": "flops", "memoryMs": "memory_ms", "computeMs": "compute_ms", "linkMs": "link_ms", "floorMs": "floor_ms",
    "tokensPerS": "tokens_per_s", "bound": "bound", "sentBytes": "sent_bytes", "bubble": "bubble", "ncclMs": "nccl_ms",
}  # fmt: skip
STAGE = {
    "name": "name", "weights": "weight_bytes", "kv": "kv_bytes", "activations": "activation_bytes", "flops": "flops",
    "other": "other_flops", "bytes": "bytes", "intensity": "arithmetic_intensity",
}  # fmt: skip


def random_values(rng: random.Random) -> dict:
    """A config.json of any family, with every option that changes a count sometimes set and sometimes left to its default."""
    family = rng.choice(["llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3_text", "gpt2"])
    kv_heads, group, head_dim = rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 4, 5, 8]), rng.choice([2, 8, 32]) * rng.randint(4, 12)
    heads, layers = kv_heads * group, rng.randint(1, 90)
    if family == "gpt2":
        values = dict(model_type=family, vocab_size=rng.randint(100, 60000), n_embd=heads * head_dim, n_head=heads, n_layer=layers)
        return values | sometimes(rng, n_inner=8 * rng.randint(1, 900), n_positions=rng.randint(512, 4096), tie_word_embeddings=False)
    values = dict(
        model_type=family, vocab_size=rng.randint(100, 200000), hidden_size=heads * head_dim, intermediate_size=8 * rng.randint(1, 4000),
        num_hidden_layers=layers, num_attention_heads=heads,
    )  # fmt: skip
    values |= sometimes(rng, num_key_value_heads=kv_heads, head_dim=head_dim, tie_word_embeddings=True, attention_bias=True)
    if family == "mistral":
        values |= sometimes(rng, sliding_window=rng.choice([None, 7, 1000]))
    if family.startswith("gemma"):
        values |= dict(num_key_value_heads=kv_heads, head_dim=head_dim)
        values |= sometimes(rng, sliding_window=rng.choice([None, rng.randint(1, 5000)]))
    if family == "gemma3_text":
        values |= sometimes(rng, sliding_window_pattern=rng.randint(1, 7))
    if family.startswith("qwen"):
        window = rng.choice([None, rng.randint(1, 5000)])
        values |= sometimes(rng, use_sliding_window=True, sliding_window=window, max_window_layers=rng.randint(0, 60))
    if family.endswith("moe"):
        experts = rng.randint(1, 200)
        values |= sometimes(rng, qkv_bias=False, moe_intermediate_size=8 * rng.randint(1, 300), norm_topk_prob=True)
        values |= {rng.choice(["num_experts", "num_local_experts"]): experts, "num_experts_per_tok": rng.randint(1, experts)}
        values |= sometimes(rng, shared_expert_intermediate_size=8 * rng.randint(1, 900)) if family == "qwen2_moe" else {}
    if family != "llama":
        has_window = values.get("sliding_window", 4096) and (not family.startswith("qwen") or "use_sliding_window" in values)
        kinds = ["full_attention", "sliding_attention"] if has_window else ["full_attention"]
        values |= sometimes(rng, layer_types=[rng.choice(kinds) for _ in range(layers)])
    return values


def sometimes(rng: random.Random, **options) -> dict:
    """Each option with one chance in two."""
    return {name: value for name, value in options.items() if rng.random() < 0.5}


def random_case(rng: random.Random) -> dict:
    values = random_values(rng)
    config = parse_model_config(values)
    most = config.max_position_embeddings if config.rope is None else 200000
    wishes = dict(
        context=round(most ** rng.random()), batch=round(20000 ** rng.random()), tensorParallel=rng.choice(degrees(config)),
        pipelineParallel=rng.choice([n for n in range(1, config.num_hidden_layers + 1) if config.num_hidden_layers % n == 0]),
        memoryShare=rng.choice([0.5, 0.9, 1.0]), pricePerHour=rng.choice([None, 0.0, 2.5]),
    )  # fmt: skip
    cached = [name for name, table in kv_format_tables().items() if config.head_dim % table["multiple"] == 0]
    part = costs.shard(config, wishes["tensorParallel"])
    inputs = [matrix.inputs for matrix in layer_matrices(part)]
    held = [name for name, one in WEIGHT_FORMATS.items() if not one.group_size or not any(size % one.group_size for size in inputs)]
    gpu = rng.choice([*GPUS, *["NVIDIA H200"] * len(GPUS)])  # between H200s NCCL was measured
    choices = dict(gpu=gpu, dtype=rng.choice(held), kvDtype=rng.choice(cached))
    return dict(values=values, wishes=wishes, **choices)


def check(theirs: dict, ours, names: dict[str, str], case: dict) -> None:
    """Equal, up to the rounding of numbers above 2^53 in JavaScript."""
    for name, our_name in names.items():
        expected = getattr(ours, our_name)
        if not isinstance(expected, str | bool | None):
            expected = pytest.approx(expected, rel=1e-12)
        assert theirs[name] == expected, (name, case)


@needs_javascript
def test_the_calculators_formulas_are_those_of_the_package():
    rng = random.Random(4)
    cases = [random_case(rng) for _ in range(CASES)]
    answers = run("plan_cases.mjs", "costs.js", cases)
    assert len(answers) == CASES
    for case, answer in zip(cases, answers, strict=True):
        config, asked, weights = parse_model_config(case["values"]), case["wishes"], WEIGHT_FORMATS[case["dtype"]]
        formats, money = (case["dtype"], case["kvDtype"]), (asked["pricePerHour"], asked["memoryShare"])
        wishes = Wishes(asked["context"], asked["batch"], *formats, asked["tensorParallel"], asked["pipelineParallel"], *money)
        plan = make_plan(config, GPUS[case["gpu"]], wishes)
        check(answer["plan"], plan, PLAN, case)
        for name, floor in (("decode", plan.decode), ("prefill", plan.prefill)):
            check(answer["plan"][name], floor, FLOOR, case)
            assert answer["plan"][name]["cost"] == pytest.approx(plan.cost_per_million(floor)), case
        part = costs.shard(config, wishes.tensor_parallel)
        sizes = dict(itemsize=weights.itemsize, kv_itemsize=kv_itemsize(case["kvDtype"], config.head_dim), weight_format=weights)
        decode = costs.decode_stages(part, wishes.batch, wishes.context, **sizes)
        prefill = costs.prefill_stages(part, wishes.context, **sizes, sequences=wishes.batch)
        for theirs, ours in ((answer["decodeStages"], decode), (answer["prefillStages"], prefill)):
            for their_stage, our_stage in zip(theirs, ours, strict=True):
                check(their_stage, our_stage, STAGE, case)
