# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17. The whole engine, and which hardware for it
#
# Every part of the engine has had its lesson. Here they run together: one request goes from text to text, a timeline
# shows when host and GPU wait for each other, and the cost of a token follows from bytes, FLOPs and a price per hour.
# At the end you choose a chip.
#
# ```mermaid
# flowchart LR
#     text["text"] --> ids["token ids"] --> step["a Step<br/>of spans"] --> arrays["arrays,<br/>one replay"]
#     arrays --> kernels["kernels:<br/>embed,<br/>layers,<br/>sample"]
#     kernels --> back["tokens in<br/>page-locked<br/>memory"] --> piece["a piece<br/>of text"]
# ```
#
# $$\text{dollars per million tokens} = \frac{10^6 \cdot \text{price per hour}}{3600 \cdot \text{tokens per second} \cdot \text{utilisation}}$$
#
# The loop that drives this is short:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.engine.core import EngineCore

show_source(
    EngineCore._launch_ahead,
    notes={
        "while len(self._launched)": "As long as no more than `steps_ahead` launched steps are unread: 1 on a GPU, 0 on a CPU.",
        "self.runner.execute(step)": "Returns before the GPU has begun. The tokens that this step decodes lie on the GPU.",
        "self.scheduler.fail": "One step's error ends its own sequences alone.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - read the timeline of an engine, and remove a bubble from it;
# - say where the time of a step goes, and what changes with batch and context;
# - compute the price of a million tokens, and use it to compare chips for a model.
#
# You need [lesson 4](04_arithmetic_intensity_and_the_roofline.py) for floors,
# [lesson 15](15_launch_overhead_and_cuda_graphs.py) for replays and
# [lesson 8](08_the_kv_cache.py) for the size of the cache. You need no GPU.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    percent_of_bytes_weights="The 8B shape decodes 256 sequences that see 1,024 tokens each, in bfloat16. "
    "What percentage of the bytes read are weights?",
    percent_gpu_busy_in_turns="A step takes 0.78 ms on the GPU and 0.32 ms on the host. If they take turns, "
    "what percentage of the time does the GPU compute?",
    byte_price_v100_over_b200="The V100 is from 2017, the B200 from 2024; both can be rented. By what factor does it cost more "
    "to read a byte on the V100?",
)
guess.ask()

# %% [markdown]
# ## One token, through every part
#
# ??? note "The parts that a request passes through, and their lessons"
#     - text and tokens ([1](01_what_a_language_model_computes.py)):
#       [prompts.py](../minllm/engine/requests/prompts.py),
#       [incremental_decoder.py](../minllm/models/incremental_decoder.py)
#     - the plan of a step ([16a](16a_batching_many_requests.py)):
#       [scheduler.py](../minllm/engine/scheduling/scheduler.py),
#       [step.py](../minllm/engine/scheduling/step.py)
#     - its memory ([11](11_paged_blocks_and_shared_prefixes.py)):
#       [kv_cache_manager.py](../minllm/engine/scheduling/kv_cache_manager.py),
#       [paged.py](../minllm/cache/paged.py)
#     - its launch ([15](15_launch_overhead_and_cuda_graphs.py)):
#       [model_runner.py](../minllm/engine/running/model_runner.py),
#       [step_graphs.py](../minllm/engine/running/step_graphs.py)
#     - the forward ([6](06_norms_rope_swiglu_fusion.py)): [decoder.py](../minllm/models/decoder.py)
#     - matrices ([5b](05b_matrix_products_on_hopper.py)):
#       [matmul](../minllm/kernels/matmul/__init__.py); attention
#       ([7](07_prefill_and_flash_attention.py), [9](09_flash_decoding.py)):
#       [attention](../minllm/kernels/attention/__init__.py)
#     - the next token ([14](14_choosing_the_next_token.py)):
#       [sample.py](../minllm/kernels/sampling/sample.py),
#       [host_copies.py](../minllm/engine/running/host_copies.py)
#
# Two requests of the bundled model; the second arrives two steps later:

# %%
from unittest.mock import patch

from minllm import LLM, SamplingParams
from minllm.engine.scheduling.scheduler import Scheduler

llm = LLM(dtype="float32", device="cpu", max_num_seqs=4, max_model_len=128)
engine = llm.llm_engine
params = SamplingParams(temperature=0, max_tokens=4)
schedule = Scheduler.schedule


def noting(scheduler):
    """Plan a step as ever, and print its spans."""
    step = schedule(scheduler)
    for span in step.spans if step else ():
        kind = "decode" if span.decodes else "prefill"
        print(
            f"  request {span.sequence.request_id}: {kind} of {span.length} tokens at "
            f"{span.start}"
        )
    return step


engine.add_request("A", "def add(a, b):", params)
with patch.object(Scheduler, "schedule", noting):
    for number in range(1, 7):
        if number == 3:
            engine.add_request("B", "import os", params)
        print(f"step {number}")
        for output in engine.step():
            print(f"  request {output.request_id} so far: {output.outputs[0].text!r}")

# %% tags=["hide"]
assert not engine.has_unfinished_requests()

# %% [markdown]
# ## Write your own
#
# Write the loop at the top: it launches a step before it reads the tokens of the previous one. At the end of the check
# your loop generates text.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("engine.launch_ahead")

# %% [markdown]
# ## The timeline of a step
#
# Between two replays the host works: it plans, uploads what has changed, reads tokens, and
# turns them into text. Host and GPU wait for each other if they take turns. The loop at the top therefore launches a
# step before it reads the tokens of the previous one.
#
# A token that the host has not seen can be decoded because it never leaves the GPU:
# the last kernel of step $n$ stores it in the sequence's slot, and the first kernel of step
# $n + 1$ reads it there. The host gets it one step later. The price is one wasted row: a sequence that ends with a
# stop token is computed one step too far, and the engine drops the surplus token.
#
# Below, the engine's own loop, scheduler and model generate text, on a
# [simulated clock](../minllm/course/host_and_gpu.py). The GPU's time for a decode step is
# the recorded one of the 1B shape; the host's times are assumed.

# %% tags=["fold"]
from minllm.course import recorded, timeline
from minllm.course.host_and_gpu import (
    READ_COLOUR,
    HostAndGpu,
    StepTimes,
    TimedRunner,
    TimedScheduler,
)

ONE_USER = "(random weights), batch 1, "
(step_row,) = recorded(
    "decode step", f"llama-3.2-1b {ONE_USER}context 1024", "graph replay"
)
STEP_US, PROMPT_US = step_row.value, 3  # per step; per prompt token, assumed
HOST = dict(schedule=60, upload=30, replay=40, take=50)  # µs, assumed
DETOKENISE_US = 170  # assumed


def gpu_time(step):
    """Microseconds of the GPU for a step."""
    return STEP_US + PROMPT_US * sum(
        span.length for span in step.spans if not span.decodes
    )


def simulated(steps_ahead):
    """(host and GPU after a run of three requests, their texts)."""
    machine, times, texts = HostAndGpu(), StepTimes(gpu=gpu_time, **HOST), {}
    timed = dict(
        scheduler=TimedScheduler(engine.core.scheduler, machine, times),
        runner=TimedRunner(engine.core.runner, machine, times, steps_ahead),
    )
    with patch.multiple(engine.core, **timed):
        for number, prompt in enumerate(
            ("def add(a, b):", "class Stack:", "import os")
        ):
            engine.add_request(f"{number}", prompt, params)
        while engine.core.has_work:
            if outputs := engine.step():
                machine.work("detokenise", DETOKENISE_US, READ_COLOUR)
            texts |= {output.request_id: output.outputs[0].text for output in outputs}
    return machine, texts


# %%
turns, texts = simulated(steps_ahead=0)
overlapped, texts_overlapped = simulated(steps_ahead=1)
for name, machine in (("taking turns", turns), ("overlapped", overlapped)):
    end = machine.spans[-1].end / 1e3
    print(f"{name:13} {end:5.2f} ms, GPU busy {100 * machine.gpu_share:3.0f} %")

# %% tags=["hide"]
assert texts == texts_overlapped and turns.bubbles() and not overlapped.bubbles()

# %% tags=["fold"]
from dataclasses import replace

both = [replace(span, lane=f"{span.lane}, in turns") for span in turns.spans]
both += [replace(span, lane=f"{span.lane}, overlapped") for span in overlapped.spans]
timeline(
    both,
    "µs",
    "Four steps of three requests: in turns, and one step ahead",
    caption=f"Simulated. Decode steps of {STEP_US:.0f} µs ({step_row.label}); host "
    "times assumed. "
    "On the host: schedule, upload and replay; waiting; take and detokenise. Hover "
    "for names.",
)

# %% [markdown]
# The texts are equal and the bubbles are gone (four steps had three). Now the host waits: its work is hidden as long as
# it takes less time than the step. A faster GPU, a smaller model or a larger batch, whose rows all need text, can make
# the host the bottleneck again.
#
# !!! tip "Takeaway"
#     Launch a step before you read the last one: the host then costs nothing as long as a step takes longer.
#
# ## Where the time of a step goes
#
# A stage takes at least the time to move its bytes, at the bandwidth of a copy. Here is a decode step of the 8B shape,
# stage by stage:

# %%
from minllm import costs
from minllm.course import Bar, bars, load_record
from minllm.models.shapes import find_config

shapes = {name: find_config(f"llama-3.{name}")[1] for name in ("2-1b", "1-8b", "1-70b")}
config_8b, tb_s = shapes["1-8b"], load_record()["ceilings"]["copy_tb_s"]
stages = {n: costs.decode_stages(config_8b, n, context=1024) for n in (1, 256)}
weights_percent = {}
for batch, found in stages.items():
    weights, cache = (
        sum(getattr(one, f"{kind}_bytes") for one in found) for kind in ("weight", "kv")
    )
    weights_percent[batch] = 100 * weights / (weights + cache)
    gigabytes = f"weights {weights / 1e9:.1f}, keys and values {cache / 1e9:.1f}"
    print(f"batch {batch:3}, GB: {gigabytes}")

# %% tags=["hide"]
assert weights_percent[1] > 99 and weights_percent[256] < 35

# %% tags=["fold"]


def milliseconds(stage):
    """All bytes of a stage at the rate of a copy."""
    return (stage.weight_bytes + stage.kv_bytes + stage.activation_bytes) / tb_s / 1e9


bars(
    [
        Bar(f"{one.name}, batch {batch}", milliseconds(one), "", colour)
        for pair in zip(*stages.values())
        for colour, (batch, one) in enumerate(zip(stages, pair))
        if milliseconds(pair[1]) > 0.05
    ],
    unit="ms",
    title="Floor of every stage of a decode step, all layers together",
    caption=f"Computed by minllm.costs: 8B shape, context 1,024, {tb_s:.2f} TB/s as a "
    "copy on an H200.",
)

# %% [markdown]
# Keys and values are two thirds of the bytes at 256 sequences. Quantising only the weights gains little there;
# quantising keys and values ([lesson 13](13_quantised_kv_cache.py)) gains more. `minllm bench step --parts` measures
# how much time each kernel adds. These are whole steps, as recorded:

# %%
from minllm.course import listing

print(listing(recorded("decode step", "", "graph replay", listed=True)))

# %% [markdown]
# !!! tip "Takeaway"
#     The largest bar is what to shorten: weights in small batches, keys and values in large ones.
#
# ## What a million tokens cost
#
# The formula at the top needs a price, a measured rate, and the share of the paid time in which the GPU is loaded.
# Prices are inputs. Below are list prices of two providers, without commitment. **They are assumptions**: other
# providers charge half or three times as much. Put in your own prices.

# %%
# dollars per GPU and hour; Lambda, 8 GPUs, on demand, lambda.ai/instances, read
# 2026-09-20
PRICES = {
    "v100-16gb": 0.79,
    "a100-40gb": 1.99,
    "a100-80gb": 2.79,
    "h100-sxm": 3.99,
    # Hyperstack, on demand, hyperstack.cloud/gpu-pricing, read 2026-08-26
    "h200": 3.99,
    "b200": 6.69,
}


def dollars_per_million(price, tokens_per_s, utilisation=1.0):
    """Dollars per million tokens."""
    return 1e6 * price / (3600 * tokens_per_s * utilisation)


def rate(benchmark, case):
    """(name, recorded tokens per second)."""
    row = recorded(benchmark, case, listed=True)[0]
    return f"{case.split()[0]}, {case.rpartition('), ')[2]}", row.value, row.lines


rates = [
    rate("decode", f"{model} {ONE_USER}prompt 512")
    for model in ("llama-3.2-1b", "llama-3.1-8b")
]
rates += [
    rate(
        "serving throughput",
        f"{model} (random weights), mixed-prompts, 256 requests, all at once",
    )
    for model in ("llama-3.2-1b", "llama-3.1-8b")
]
for name, tokens_per_s, label in rates:
    full, third = (
        dollars_per_million(PRICES["h200"], tokens_per_s, u) for u in (1, 1 / 3)
    )
    print(
        f"{name}\n  {tokens_per_s:8,.0f} tokens/s {full:7.3f} $, at u = 1/3 "
        f"{third:7.3f} $"
    )
    print(label)
print(f"an H200 at {PRICES['h200']} $/h")

# %% tags=["hide"]
assert 30 < rates[2][1] / rates[0][1] < 60 and 30 < rates[3][1] / rates[1][1] < 60

# %% [markdown]
# A full batch makes a token some forty times cheaper, although the prompts of these requests are computed as well. The
# last tenth of a kernel's speed saves a tenth of the price; idle nights cost a factor of three.
#
# !!! tip "Takeaway"
#     Full batches and few idle hours decide the price of a token, more than the last tenth of a kernel.
#
# ## Which chip?
#
# Three numbers of a data sheet decide, and each sets one limit:
#
# | number | sets |
# | --- | --- |
# | bandwidth | latency of one user: weights / bandwidth |
# | memory | the batch: what the weights leave, divided by the bytes of a sequence |
# | FLOP/s | prefill, and decode beyond the ridge, if memory allows so large a batch |
#
# [`make_plan`](../minllm/planning/plan.py), which `minllm plan` prints, uses all three. Only the H200 was measured
# here, so all chips are compared at the rates of their data sheets. A model is spread over the number of chips, up to
# 16, that makes its tokens cheapest.

# %% tags=["fold"]
from minllm.machine.hardware import gpu_named
from minllm.planning.plan import Wishes, make_plan

CONTEXT = 2048


def plan_on(chip, config, batch, gpus):
    """The plan of a decode step on this number of chips, by data sheet."""
    _, gpu = gpu_named(chip)
    sheet = replace(gpu, measured_copy_tb_s=None, measured_bf16_tflops=None)
    dtype = "bfloat16" if gpu.bf16_tflops else "float16"  # a V100 has no bfloat16
    wishes = Wishes(CONTEXT, batch, dtype, dtype, gpus, price_per_hour=PRICES[chip])
    return make_plan(config, sheet, wishes)


def cheapest(chip, config):
    """(number of chips, plan at batch 1, plan of the largest batch)."""
    options = []
    for gpus in (1, 2, 4, 8, 16):
        largest = plan_on(chip, config, 1, gpus).largest_batch
        if largest:
            full = plan_on(chip, config, largest, gpus)
            dollars = full.cost_per_million(full.decode)
            options.append((dollars, gpus, plan_on(chip, config, 1, gpus), full))
    return min(options, key=lambda option: option[0])[1:]


# %%
columns = "1 user     largest batch   tokens/s   $/M tokens  $/M prompt"
print("shape   chips           ", columns)
dollars = {}
for name, config in shapes.items():
    for chip in PRICES:
        gpus, one, full = cheapest(chip, config)
        dollars[name, chip] = full.cost_per_million(full.decode)
        prompt = full.cost_per_million(full.prefill)
        rate = full.decode.tokens_per_s
        print(
            f"{name[2:]:>4} {gpus:3} x {chip:10} {one.decode.floor_ms:8.2f} ms "
            f"{full.wishes.batch:8,} x {CONTEXT} {rate:11,.0f} "
            f"{dollars[name, chip]:11.3f} {prompt:11.4f}"
        )

# %% tags=["fold"]
chips = ["v100-16gb", "a100-80gb", "h100-sxm", "h200", "b200"]
bars(
    [
        Bar(f"{name[2:].upper()} on {chip}", dollars[name, chip], "", index)
        for index, name in enumerate(shapes)
        for chip in chips
    ],
    unit="$",
    title="Floor of the price of a million generated tokens, full batch",
    log=True,
    caption=f"Computed: data sheets, context {CONTEXT:,}, 16 bits, prices as assumed "
    "above, 100 % utilised.",
)

# %%
byte_price = {}
for chip, price in PRICES.items():
    gpu = gpu_named(chip)[1]
    byte_price[chip] = price / 3600 / gpu.bandwidth_tb_s  # dollars per TB
    per_1000 = f"{1e3 * byte_price[chip]:.3f} $ per 1,000 TB read"
    print(f"{chip:10} {per_1000}, {gpu.memory_gb:3.0f} GB")

# %% tags=["hide"]
assert max(byte_price[c] for c in ("v100-16gb", "h200", "b200")) < 1.1 * min(
    byte_price.values()
)

# %% [markdown]
# A V100, an H200 and a B200 read a byte for nearly the same price. New chips offer more memory with that bandwidth, and
# more FLOP/s. The 1B shape leaves room on every chip, so an old chip is as cheap as any. For the 8B shape eight V100s
# together store the weights once and come within a third of the H200's price. For the 70B shape sixteen V100s are
# nearly full of weights: 61 sequences fit, and their tokens cost four times as much.
#
# All of these steps are bound by memory: at 2,048 tokens of context the cache is full long before the batch reaches the
# ridge. FLOP/s matter in the last column, the price of prompts. Several chips also cost more than the bytes on their
# link: they have to synchronise, and the floors leave that out.
#
# !!! tip "Takeaway"
#     Bandwidth costs about the same on old and new chips. Memory decides the batch, and so the price.

# %% tags=["hide-input"]
guess.against(
    percent_of_bytes_weights=weights_percent[256],
    percent_gpu_busy_in_turns=100 * turns.gpu_share,
    byte_price_v100_over_b200=byte_price["v100-16gb"] / byte_price["b200"],
)

# %% [markdown]
# [Another page](../docs/frameworks.md) compares the speed of frameworks on the same chip. Plan your own model with [the
# calculator](../docs/calculator.md).
#
# ## Measured against predicted
#
# The table above compares your guesses with computed values. The record has the rates of whole runs:

# %%
for model in ("llama-3.1-8b", "llama-3.2-1b"):
    case = f"{model} (random weights), mixed-prompts, 256 requests, all at once"
    print(listing(recorded("serving throughput", case, listed=True)[:1]))

# %% [markdown]
# ## Exercises
#
# This lesson's exercise is above. In [the final project](../docs/project.md) five of your own parts
# run in one engine.
#
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("slow_company")

# %% [markdown]
# ## Problems
#
# ??? question "1. An estimate for a V100, with 900 GB/s and 112 TFLOP/s, says 'memory 22.2 ms, compute 3.3 ms, take the larger; 720 tokens per second'. Which model, at which batch?"
#     22.2 ms at 900 GB/s is 20 GB of weights: 10 billion parameters in float16. 720 tokens per second at 22.2 ms per
#     step is 16 tokens per step: batch 16. Its multiplications take 2 x 10e9 x 16 / 112e12 = 2.9 ms; 3.3 ms would be
#     11.6 billion parameters.
#
# ??? question "2. The host needs 0.4 ms per step and 2 µs per row for text. From which batch on does it hold up the 1B shape on an H200, with steps of about 1.1 ms at 64 rows and 2.0 ms at 256?"
#     0.4 + 0.002 x 64 = 0.53 ms, and 0.4 + 0.002 x 256 = 0.91 ms: never up to 256 rows, if it overlaps. If they take
#     turns, the step takes 2.9 ms instead of 2.0, 46 % more. At 8 µs per row the overlapped host would need 2.4 ms:
#     then it is the bottleneck.
#
# ??? question "3. A provider pays 3.99 dollars per hour for an H200 and sells a million tokens of the 8B shape for 20 cents. At 10,800 tokens per second, how idle may it be?"
#     At full load a million tokens cost 1e6 x 3.99 / (3600 x 10,800) = 0.103 dollars. The price covers the cost at u =
#     0.103 / 0.20 = 51 %: it may be idle for half of the time, and then makes no profit.
#
# ??? question "4. A Groq LPU has 230 MB of SRAM at 80 TB/s (published). How many hold Llama 2 70B in float16, 138 GB? What is the floor of a token, if the chips work one after another?"
#     138 GB / 0.23 GB = 600 chips. Each reads its 230 MB in 2.9 µs, and the chips work one after another, as their
#     layers do: 600 x 2.9 µs = 1.7 ms, 580 tokens per second. 300 were published, 52 % of that. An H200 could not hold
#     the model; two need 14.4 ms. Bandwidth without capacity takes racks of chips.
#
# ??? question "5. Fp8 weights halve the bytes of the 8B shape's weights. What does that do to the floor of a step at batch 1, and at batch 256 with a context of 1,024?"
#     The layers' matrices are 7.0 of the 7.5 billion numbers that a step reads. At batch 1
#     the floor falls by 46 %. At batch 256 weights are 30 % of the bytes: 14 % less. But the
#     freed 7.0 GB hold 26 more sequences of 2,048 tokens.

# %% tags=["hide"]
assert abs(20 / 0.9 - 22.2) < 0.1 and round(16 / 22.2e-3) == 721
assert abs(dollars_per_million(3.99, 10_800) - 0.1026) < 0.001
assert round(138 / 0.23) == 600 and abs(600 * 0.23e3 / 80 / 1e3 - 1.725) < 0.01
freed = config_8b.num_hidden_layers * costs.layer_matrix_parameters(config_8b)
assert freed // (2048 * costs.kv_bytes_per_token(config_8b)) == 26
for batch, percent in ((1, 46), (256, 14)):
    half = 100 * freed / costs.decode_step(config_8b, batch, 1024).bytes
    assert abs(half - percent) < 0.6
assert (
    0.9 < dollars["2-1b", "v100-16gb"] / min(dollars["2-1b", c] for c in PRICES) < 1.3
)
assert 1.2 < dollars["1-8b", "v100-16gb"] / dollars["1-8b", "h200"] < 1.4
assert 3.5 < dollars["1-70b", "v100-16gb"] / dollars["1-70b", "h200"] < 4.5
llm.close()

# %% [markdown]
# ## What next, and the measurement behind it
#
# The stages show where the bytes are: nearly all are weights at batch 1, and two thirds are keys and values at
# batch 256. [Weights in four bits](18_quantised_weights.py) shorten the first bar, quantised keys and values the
# second, and [drafts that one step verifies](19_speculative_decoding.py) divide both by the number of accepted
# tokens; [several GPUs](20_several_gpus.py) divide every bar and add the time of their all-reduces. Take the
# largest bar, predict, measure.
#
# ??? tip "The whole engine in one evening"
#     You know every part now. [minllm.nano](../docs/nano.md) puts them together in 750 lines, with the kernels that you
#     have written: read it from end to end, change it, and see what the fast engine does differently.
#
# ## Sources
#
# - G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative
#   Models", OSDI 2022, section 3.
# - R. Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, sections 2 and 4.
# - NVIDIA, "CUDA Driver API", section "API synchronization behavior": copies to pageable memory.
# - NVIDIA, data sheets of V100, A100, H100, H200 and HGX B200, as in
#   [hardware.py](../minllm/machine/hardware.py).
# - Prices: Lambda, "On-demand GPU instances", read 2026-09-20; Hyperstack, "GPU pricing",
#   read 2026-08-26.
# - TechPowerUp, 2024, on the Groq LPU: 230 MB, 80 TB/s, 188 TFLOP/s in float16, 300 tokens
#   per second for Llama 2 70B.
