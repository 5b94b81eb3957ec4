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
# # 16a. Batching many requests: what goes into a step
#
# A decode step reads all weights, whether for one sequence or for a hundred, so a server computes many requests
# together. But requests arrive at any time, and their answers end at any time. Before every step, the *scheduler*
# decides which are computed next. Here A and B arrive together, then C with 3,000 tokens, and D with a short prompt:

# %% tags=["fold"]
from minllm.bench.serving.simulated import simulate
from minllm.bench.serving.workload import BenchRequest
from minllm.costs import Load, StepCosts
from minllm.course import Span, load_record, timeline
from minllm.models.shapes import named_config

ceilings = load_record()["ceilings"]  # a large copy and cuBLAS, measured on an H200
rates = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
costs = StepCosts.of(named_config("llama-3.1-8b"), *rates)
trace = [(256, 24, 0.0), (256, 10, 0.0), (3000, 8, 0.018), (64, 8, 0.020)]
trace = [BenchRequest([1] * prompt, output, at) for prompt, output, at in trace]
budgets = {"static": 4096, "in_flight": 4096, "prefill_first": 4096, "split_fuse": 512}


def drawn(policy, budget):
    """A span per request and step: prompts in colour 1, decodes in colour 0."""
    _, steps = simulate(
        costs, trace, policy, max_num_batched_tokens=budget, steps_ahead=0
    )
    return [
        Span(f"{policy} {'ABCD'[int(span.request_id)]}", 1e3 * step.begin,
             1e3 * step.end, colour=0 if span.decodes else 1)
        for step in steps for span in step.spans
    ]  # fmt: skip


spans = [span for policy, budget in budgets.items() for span in drawn(policy, budget)]
timeline(
    sorted(spans, key=lambda span: ([*budgets].index(span.lane[:-2]), span.lane)),
    "ms",
    "Four policies, one trace: prompts orange, decodes blue",
    caption="Simulated: the 8B shape on an H200. C arrives at 18 ms, D at 20 ms.",
)

# %% [markdown]
# $$t_\text{step} = \max\left(\frac{\text{weights}}{\text{bandwidth}}, \frac{\text{FLOP per token} \cdot T}{\text{peak}}\right)
# + \frac{\text{keys and values}}{\text{bandwidth}}$$
#
# A step that computes $T$ tokens takes $t_\text{step}$. The scheduler has two methods: `decode(step)` gives each running
# sequence its next token, `prefill(step)` spends the rest of the step's budget of tokens on prompts. A policy says what
# comes first. This one is Orca's:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.engine.scheduling.in_flight import InFlightBatching

show_source(InFlightBatching)

# %% [markdown]
# - **Static batching** starts and ends a batch as a whole. C and D wait for A's last token. B's place stays empty after
#   B has ended.
# - **In-flight batching** (Orca's *iteration-level scheduling*) lets requests join and leave between two steps. C's
#   prompt makes one long step, during which A and B wait for their next token.
# - **Prefill first** computes prompts in steps of their own. D's first token comes early, but A's tokens come later.
# - **Dynamic SplitFuse** (*chunked prefill*) gives every step the same budget of tokens: all decodes, and then as much
#   of the prompts as fits. No gap between tokens is longer than a full step.
#
# **What you will be able to do**
#
# - say what each scheduling policy does to the first token, to the gaps between tokens, and to throughput;
# - write the policy that the engine uses;
# - choose a token budget for a promise about gaps.
#
# You need lessons [8](08_the_kv_cache.py), [11](11_paged_blocks_and_shared_prefixes.py) and
# [15](15_launch_overhead_and_cuda_graphs.py). The engine's own scheduler runs here, on a *simulated server*.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    ridge="The 8B shape on an H200. From how many tokens per step on is arithmetic the limit of linear layers?",
    gap_factor="A third of the prompts have 4,096 tokens. By what factor does the p99 gap between tokens shrink if the "
    "budget falls from 8,192 to 256?",
    throughput_kept="And what percentage of the throughput is left?",
)
guess.ask()

# %% [markdown]
# ## Write the policy
#
# Dynamic SplitFuse is the engine's default. Write it, in two lines:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("scheduling.split_fuse")

# %% [markdown]
# On [this page](../docs/batching.md) you can change policy, load and budget, and watch the result.
#
# <!-- interactive: batching -->
#
# ## What a step takes
#
# The kernels of a step run one after another. Linear layers process the tokens of all requests together; attention
# reads each decode's own keys and values. The model has $W$ bytes of weights, $F$ FLOPs per token and $k$ cached
# bytes per token; the GPU has bandwidth $B$ and peak $C$. A step of $n$ decodes and $T$ tokens in all then takes at
# least
#
# $$t = \max\left(\frac{W}{B}, \frac{F\,T}{C}\right) + \frac{k \sum \text{contexts}}{B}
# + t_\text{prompts' attention}$$
#
# The server's clock advances by this least time. Below the ridge the first term is constant: a token more costs nothing but its keys and values.

# %%
print(f"ridge: {costs.ridge:.0f} tokens per step")
for tokens in (1, 64, 192, 256, 1024, 4096):
    print(f"{tokens:5} tokens: {1e3 * costs.linear_seconds(tokens, 1):6.2f} ms")

# %% [markdown]
# !!! tip "Takeaway"
#     Up to the ridge, tokens share the reading of the weights. Beyond it, each token adds its own arithmetic.
#
# ## The budget is a dial
#
# Now a third of the prompts have 4,096 tokens. ITL, the inter-token latency, is one gap between two tokens of an
# answer, and TTFT the time to the first token. 99 % of the values are below the p99.

# %%
from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.workload import Lengths, Workload

PROMPTS, OUTPUTS = Lengths((64, 256, 512, 1024)), Lengths((16, 240), is_range=True)
requests = Workload(300, PROMPTS, OUTPUTS).requests()
lengths = [(len(one.prompt), one.output_len) for one in requests]
load = Load(costs, *zip(*lengths))  # prompts, outputs


def served(policy, share, wanted=requests, **options):
    """Metrics at this share of the load that the server can bear (lesson 16b)."""
    run, _ = simulate(costs, arriving(wanted, share * load.capacity), policy, **options)
    return calculate_metrics(run)


mixed = Workload(150, Lengths((64, 256, 4096)), OUTPUTS).requests()
sizes = (128, 256, 512, 1024, 2048, 4096, 8192)
dial = [served("split_fuse", 0.2, mixed, max_num_batched_tokens=size) for size in sizes]
blocked = served("in_flight", 0.2, mixed, max_num_batched_tokens=4096)
for size, one in zip(sizes, dial):
    print(
        f"{size:5} tokens: ITL p99 {one.itl.p99:5.1f} ms, "
        f"TTFT p99 {one.ttft.p99:6,.0f} ms, {one.output_throughput:,.0f} tokens/s"
    )
print(f"whole prompts, 4096: {blocked.output_throughput:,.0f} tokens/s")

# %% tags=["hide"]
assert dial[1].itl.p99 < 0.15 * dial[-1].itl.p99
assert dial[1].ttft.p99 < 2 * dial[-1].ttft.p99
assert dial[1].output_throughput > 0.98 * dial[-1].output_throughput
assert blocked.output_throughput < 0.6 * dial[-1].output_throughput

# %% [markdown]
# A budget of 256, just above the ridge, already fills the tensor cores: the gaps shrink to a tenth at almost no cost.
# With smaller chunks, reading the weights takes longer than the arithmetic. (Launches, which the simulation leaves out,
# favour somewhat larger budgets.)
#
# The last line shows *head-of-line blocking*. A whole prompt of 4,096 tokens fits a budget of 4,096 only if nothing
# else is in the step. It waits until no sequence decodes, and all requests behind it wait too.
#
# !!! tip "Takeaway"
#     The budget is a dial between gaps and first tokens. Just above the ridge it costs almost no throughput.
#
# ## Measured against predicted

# %% tags=["hide-input"]
guess.against(
    ridge=costs.ridge,
    gap_factor=dial[-1].itl.p99 / dial[1].itl.p99,
    throughput_kept=100 * dial[1].output_throughput / dial[-1].output_throughput,
)

# %% tags=["hide-input"]
from minllm.course import recorded
from minllm.errors import LessonError


def measured(case, policy):
    """The first recorded run of a policy; None as long as the record has none."""
    try:
        return recorded("serving throughput", case, policy)[0]
    except LessonError:
        return None


for policy in ("prefill_first", "split_fuse", "static"):
    row = measured("llama-3.1-8b", policy)
    found = f"{row.metrics['p99_itl_ms']} ms, {row.label}" if row else "not recorded"
    at_half = f"simulated {served(policy, 0.5).itl.p99:.1f} ms at half load"
    print(f"ITL p99, {policy}: {at_half}; {found}")

# %% [markdown]
# "Not recorded" means that the record of the GPU has no such row yet. A simulated step is a lower bound, because it
# leaves out launches, activations and the host.
# `minllm bench serve --model MODEL --compare-policies` measures your machine, and simulates one with `--simulate h200`.
#
# ## Exercises
#
# The policy above is this lesson's; [lesson 16b](16b_queues_and_a_full_cache.py) asks for the loop that it calls. On
# [the page about batching](../docs/batching.md), find a load at which SplitFuse's first token comes later than prefill
# first's.
#
# ## A detective case
#
# This fault is not in a kernel.

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("echo")

# %% [markdown]
# ## Problems
#
# All problems are about the 8B shape on an H200: a step that only reads the weights takes 3.5 ms.
#
# ??? question "1. 100 sequences decode, and reading the keys and values of each takes 16 µs. No gap may exceed 20 ms. How large may the token budget be?"
#     Keys and values take 1.6 ms. The rest, 18.4 ms, is linear layers at 18 µs per token (14 GFLOP at 785 TFLOP/s):
#     about 1,030 tokens. So 1,024, of which 924 are for prompts.
#
# ??? question "2. Weights in 4 bits, arithmetic still in bfloat16. Where is the ridge?"
#     A quarter of the bytes: the ridge falls from 184 tokens to about 46.
#
# ??? question "3. A prompt of 3,000 tokens is computed whole beside two decodes. How long is their gap at least?"
#     3,002 tokens at 18 µs: 53 ms, fifteen times the 3.5 ms of a plain step.
#
# ??? question "4. A batch of 32 answers, 16 to 240 tokens long, runs as a static batch. How much of its places' time is idle?"
#     The batch lasts as long as its longest answer, about 233 tokens, and the mean is 128: 45 % is idle.
#
# ??? question "5. One H200 at 4 dollars per hour decodes 64 sequences per step of 5 ms. What does a million tokens cost? And one sequence at a time, at 3.5 ms?"
#     12,800 tokens per second: 8.7 cents. One at a time it is 286 tokens per second: 3.9 dollars.

# %% tags=["hide"]
linear = costs.token_flops / costs.flops_per_s
assert 1000 < (0.020 - 100 * load.per_decode) / linear < 1100
assert 180 < costs.ridge < 200 and 3.4 < 1e3 * load.empty_step < 3.6
assert 0.051 < 3002 * linear < 0.055

# %% [markdown]
# ## What next, and which measurement says so
#
# At a fifth of the load, the budget hardly moves throughput: requests that arrive are served, in this order or that.
# What happens when more arrive than a server can bear, or when their keys do not fit, is [lesson
# 16b](16b_queues_and_a_full_cache.py).
#
# ## Sources
#
# - G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI
#   2022, section 3.
# - C. Holmes et al., "DeepSpeed-FastGen", 2024, section 3.
# - A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI
#   2024, section 4.
