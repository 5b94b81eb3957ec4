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
# # 16. Batching many requests
#
# A decode step reads all weights, whether for one sequence or for a hundred, so a server computes many requests
# together. But requests arrive at any time, and their answers end at any time. Before every step, the *scheduler*
# decides which requests are computed next, and which wait. Here requests A and B arrive together. While they decode, C
# arrives with a prompt of 3,000 tokens, and D with a short one:

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
# + \frac{\text{keys and values}}{\text{bandwidth}} \qquad \text{TPOT} = \frac{\alpha}{1 - \rho}$$
#
# A step that computes $T$ tokens takes $t_\text{step}$. TPOT, the time per output token, is $\alpha$ on an idle
# server, and grows with the share $\rho$ of the time in which the server is busy. A scheduling policy is a few lines.
# This one, Dynamic SplitFuse, is the engine's default:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.engine.scheduling.split_fuse import SplitFuse

show_source(SplitFuse)

# %% [markdown]
# - **Static batching** starts and ends a batch as a whole. C and D wait for A's last token. B's slot stays empty after
#   B has ended.
# - **In-flight batching** (Orca's *iteration-level scheduling*) lets requests join and leave between two steps. C's
#   prompt makes one long step, during which A and B wait for their next token.
# - **Prefill first** computes prompts in steps of their own. D's first token comes early, but A's tokens come later.
# - **Dynamic SplitFuse** (*chunked prefill*) gives every step the same budget of tokens: all decodes, and then as much
#   of the prompts as fits. No gap between tokens is longer than a full step.
#
# On [this page](../docs/batching.md) you can change policy, load and budget, and watch the result.
#
# <!-- interactive: batching -->
#
# **What you will be able to do**
#
# - say what each scheduling policy does to the first token, to the gaps between tokens, and to
#   throughput;
# - predict from a model's bytes and FLOPs how many requests per second a server can take;
# - choose a token budget, and decide what to do when the cache is full.
#
# You need lessons [8](08_the_kv_cache.py), [11](11_paged_blocks_and_shared_prefixes.py) and
# [15](15_launch_overhead_and_cuda_graphs.py). You need no GPU: this lesson runs the engine's own
# scheduler on a *simulated server*, whose clock advances by the least time that each step can take.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    token_at_half_load="At half of the load that a server can take, how many times as long does a token take "
    "as on an idle one?",
    static_first_token="At that load, how many times as long does the first token take with static batching "
    "as with SplitFuse?",
    never_preempting="The cache is too small for the batch. Server 1 keeps room for the longest possible answer "
    "of each request, and never preempts. Server 2 throws computed tokens away and computes them "
    "again. How many times as fast is server 1?",
)
guess.ask()

# %% [markdown]
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
# The first term is constant below the ridge, so $t = \alpha + \beta n$: $\alpha$ is the time to read the weights,
# $\beta$ the time to read one sequence's keys and values.
#
# Suppose that $\lambda$ requests arrive per second. A prompt takes $S$ seconds to compute, and an answer has $o$
# tokens. Prompts take the share $\lambda S$ of each second and decodes take the rest, so that
# $\text{TPOT}=(\alpha+\beta n)/(1-\lambda S)$. Little's law gives the number of requests that decode: the arrival
# rate times the time that each
# takes, $n = \lambda\, o\, \text{TPOT}$. Solve both:
#
# $$\rho = \lambda\,(S + o\,\beta), \qquad \text{TPOT} = \frac{\alpha}{1 - \rho}$$
#
# This is the law of *processor sharing* (Kleinrock): all requests are served at once, and all slow down. $\rho$ is the
# utilisation; it does not include reading the weights, because all requests share that. Prompts, in contrast, queue.
# Their mean wait is the Pollaczek-Khinchine formula:
#
# $$w = \frac{\lambda\, E[S^2]}{2\,(1 - \lambda S)}$$
#
# The time of a prompt enters squared: one prompt of 4,000 tokens delays the others more than four of 1,000.
#
# Sharing ends when $n$ reaches $N$, the smallest of three numbers: the slots, the sequences that fit in the cache, and
# the ridge. This load is the **knee**, $\lambda = 1 / (S + o\,(\beta + \alpha / N))$.

# %%
from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.workload import Lengths, Workload

PROMPTS, OUTPUTS = Lengths((64, 256, 512, 1024)), Lengths((16, 240), is_range=True)
requests = Workload(300, PROMPTS, OUTPUTS).requests()
lengths = [(len(one.prompt), one.output_len) for one in requests]
load = Load(costs, *zip(*lengths))  # prompts, outputs
print(f"alpha {1e3 * load.empty_step:.2f} ms, beta {1e6 * load.per_decode:.1f} µs")
print(f"S {1e3 * load.prefill_seconds:.1f} ms, N {load.most_decodes:.0f} sequences")
print(
    f"knee {load.capacity:.0f} requests/s, {load.capacity * load.output:,.0f} tokens/s"
)

# %% [markdown]
# ## The scheduler
#
# The scheduler needs two methods. `decode` gives each running sequence its next token; `prefill` spends the rest of the
# budget on prompts. A policy is the order in which they are called. This is `prefill`:

# %% tags=["hide-input"]
from minllm.engine.scheduling.scheduler import Scheduler

show_source(
    Scheduler.prefill,
    folded="Filling a step with prompts",
    docstring=False,
    notes={
        "budget = max(1": "Decodes come first. At least one token is left for prompts.",
        "for sequence in": "A prompt that has begun is finished before another begins.",
        "self._must_wait": "For in-flight batching: a whole prompt waits, and all behind.",
        "self._enter": "A slot, and blocks for the prompt. First come, first served.",
    },
)

# %% [markdown]
# On a GPU the scheduler plans a step while the one before it is computed
# ([lesson 15](15_launch_overhead_and_cuda_graphs.py)), so a request that arrives now joins the step
# after next.
#
# ## The knee
#
# For each rate and each policy, 300 requests arrive at random times. The law is computed without the simulation.


# %%
def served(policy, share, wanted=requests, **options):
    """Metrics at this share of the capacity."""
    run, _ = simulate(costs, arriving(wanted, share * load.capacity), policy, **options)
    return calculate_metrics(run)


shares = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.3)
shown = ("prefill_first", "split_fuse", "static")
found = {policy: [served(policy, share) for share in shares] for policy in shown}
below, half = [share for share in shares if share < 1], shares.index(0.5)
token_ratio = found["prefill_first"][half].tpot.mean / (1e3 * load.empty_step)
static_ratio = found["static"][half].ttft.mean / found["split_fuse"][half].ttft.mean

# %% tags=["fold"]
from minllm.course import curves


def under_load(metric, equation, title, **options):
    """The mean of a metric at each load, beside the law."""
    law = [(share, 1e3 * equation(share * load.capacity)) for share in below]
    lines = {"the law": law}
    for name in shown:
        means = [getattr(one, metric).mean for one in found[name]]
        lines[name] = list(zip(shares, means))
    labels = "load, as a share of the knee's", f"mean {metric.upper()}, ms", title
    caption = "Simulated: the 8B shape on an H200; the law is computed by minllm.costs"
    return curves(lines, *labels, caption=caption, **options)


under_load("tpot", load.tpot, "Time per output token under load")

# %% tags=["hide-input"]
under_load("ttft", load.ttft, "Time to first token under load", log_y=True)

# %% tags=["hide"]
for share, one in zip(below[:4], found["prefill_first"]):
    assert abs(one.tpot.mean / (1e3 * load.tpot(share * load.capacity)) - 1) < 0.15
assert 1.4 < token_ratio < 1.9 and static_ratio > 15
for first, fused in zip(found["prefill_first"][:5], found["split_fuse"]):
    assert abs(first.output_throughput / fused.output_throughput - 1) < 0.02
for at, static in list(enumerate(found["static"]))[half:5]:
    others = [found[policy][at] for policy in shown if policy != "static"]
    assert static.itl.p99 < 0.5 * min(one.itl.p99 for one in others)
    assert static.tpot.mean > max(one.tpot.mean for one in others)
    assert static.itl.mean > static.itl.p99

# %% [markdown]
# Half load costs little, because sequences share most of a step. Static batching has the
# smallest p99 of the gaps between tokens, and from half load on the largest mean time per token: fewer than one gap in
# a hundred is long, but that one waits for prompts of a whole batch. Its first token takes 0.4 s even when the server
# is nearly idle.
#
# SplitFuse is faster than the law: its prompts share steps that read the weights anyway, so each prompt costs up to
# $\alpha$ less. But its *throughput* below the knee is the same as that of prefill first, because both serve all
# requests that arrive. A policy mostly moves waiting from one user to another.
#
# ## The budget is a dial
#
# Now a third of the prompts have 4,096 tokens. ITL, the inter-token latency, is one gap between two tokens of an
# answer, and TTFT the time to the first token. 99 % of the values are below the p99.

# %%
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
# ## When the cache is full
#
# Answers grow until a sequence needs a block and none is free. The scheduler then **preempts** the newest sequence,
# in one of three ways: *recompute* its tokens later like a prompt, *swap* its keys and
# values to the host and back, or *drop* the request.

# %%
from minllm.costs.swap import SwapRates, recompute_ms, swap_ms

host_rates = SwapRates(50, *rates)  # 50 GB/s over PCIe 5, one way
config = named_config("llama-3.1-8b")
for tokens in (100, 1000, 8000):
    back, again = (
        swap_ms(config, tokens, host_rates),
        recompute_ms(config, tokens, host_rates),
    )
    print(f"{tokens:5} tokens: swap {back:5.1f} ms, recompute {again:6.1f} ms")

# %%
crowd = Workload(200, Lengths((256,)), Lengths((64, 960), is_range=True)).requests()
room = 40_000  # tokens in the cache
kinds = {
    "keep the limit": dict(prediction="limit"),
    "recompute": {},
    "keep the mean": dict(prediction="mean"),
    "drop": dict(preemption="drop"),
}
full = {
    name: calculate_metrics(simulate(costs, crowd, kv_cache_tokens=room, **kind)[0])
    for name, kind in kinds.items()
}
for name, one in full.items():
    print(
        f"{name:14} {one.output_throughput:6,.0f} tokens/s, at most {one.max_running} "
        f"together, {one.num_preemptions} preemptions, {one.failed} failed"
    )
kept, again = (full[name].output_throughput for name in ("keep the limit", "recompute"))
gain = 100 * (kept / again - 1)
assert full["keep the limit"].num_preemptions == 0 and gain < -10

# %%
guess.against(
    token_at_half_load=token_ratio,
    static_first_token=static_ratio,
    never_preempting=1 + gain / 100,
)

# %% [markdown]
# Never preempting is *slower*. Reserving room for answers that end early makes the batch smaller in every step; a
# preemption costs one prefill, now and then. On a GPU, `minllm bench serve --compare-preemption` measures all three.
#
# ## Measured against predicted

# %%
from minllm.bench.serving.workload import REQUEST_LISTS
from minllm.course import listing, recorded
from minllm.errors import LessonError


def measured(benchmark, case, variant=None):
    """The first recorded row; None as long as the record has none."""
    try:
        return recorded(benchmark, case, variant)[0]
    except LessonError:
        return None


for model in ("llama-3.1-8b", "llama-3.2-1b"):
    wanted = REQUEST_LISTS["mixed-prompts"].requests()  # 256 at once, 128 tokens each
    run, _ = simulate(StepCosts.of(named_config(model), *rates), wanted)
    floor = calculate_metrics(run).output_throughput
    case = f"{model} (random weights), mixed-prompts, 256 requests, all at once"
    row = measured("serving throughput", case)
    told = row and f"measured {row.value:,.0f}, {100 * row.value / floor:.0f} % of it"
    print(f"{model}: simulated {floor:,.0f} output tokens/s; {told or 'not recorded'}")
    if row:
        print(listing([row]))
for policy in shown:
    row = measured("serving ITL p99", "llama-3.1-8b", policy)
    at_half = f"simulated {found[policy][half].itl.p99:.1f} ms at half load"
    print(f"ITL p99, {policy}: {at_half}; {row or 'not recorded'}")

# %% [markdown]
# "Not recorded" means that the record of the GPU has no such row yet. A simulated rate is an upper bound, because it
# leaves out the time of launches, activations and the host. The smaller the model, the more these matter.
# `minllm bench serve --model MODEL --compare-policies` measures your machine, and simulates one with `--simulate h200`.
#
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(16)

# %% [markdown]
# ## Detective cases
#
# Neither of these faults is in a kernel.

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("fewer_every_day")

# %% tags=["hide-input"]
show_case("echo")

# %% [markdown]
# ## Problems
#
# All problems are about the 8B shape on an H200, with $\alpha$, $\beta$ and $S$ from above.
#
# ??? question "1. Answers have 128 tokens, TPOT is 6 ms, and 40 requests arrive per second. How many decode at a time?"
#     Little's law: 40 · 128 · 0.006 = 31. The policy does not matter.
#
# ??? question "2. 100 sequences decode. No gap may exceed 20 ms. How large may the token budget be?"
#     Their keys and values take 100 β = 1.6 ms. The rest, 18.4 ms, is linear layers at 17 µs per token
#     (14 GFLOP at 819 TFLOP/s): about 1,080 tokens. So 1,024, of which 924 are for prompts.
#
# ??? question "3. Weights in 4 bits, arithmetic still in bfloat16. Where is the ridge, and how does TPOT change on a nearly idle server?"
#     A quarter of the bytes: α falls from 3.5 ms to about 0.9 ms, and TPOT with it. The ridge falls from 192 sequences
#     to about 48, but the knee hardly moves: arithmetic sets it, and arithmetic has not changed.
#
# ??? question "4. Half of all prompts take twice as long as before, the other half next to none. How does their wait change?"
#     E[S] is the same, E[S²] is twice as large, and so is the wait.
#
# ??? question "5. A sequence of 1,000 tokens is preempted. Over PCIe at 50 GB/s, should it be swapped?"
#     Twice 131 MB take 5.4 ms; computing 1,000 tokens takes 17 ms of a step that others wait for. Swap it,
#     if the host has room.

# %% tags=["hide"]
linear = costs.token_flops / costs.flops_per_s
assert round(40 * 128 * 0.006) == 31
assert 1000 < (0.020 - 100 * load.per_decode) / linear < 1100
assert 185 < costs.ridge < 200 and 3.4 < 1e3 * load.empty_step < 3.6
assert 5.2 < swap_ms(config, 1000, host_rates) < 5.5
assert 16 < recompute_ms(config, 1000, host_rates) < 18

# %% [markdown]
# ## What next, and which measurement says so
#
# The knee is the load at which linear layers stop being shared. At $N$ = 192 sequences arithmetic sets it, and no
# policy can move it. To go beyond it, each token must cost less: fewer bits per weight, tokens that a small model
# proposes, experts of which few are used, or [more GPUs](20_several_gpus.py). [Lesson 17](17_the_whole_engine.py) puts
# the whole engine together.
#
# ## Sources
#
# - G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI
#   2022, section 3.
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
#   SOSP 2023, sections 4.5 and 4.6.
# - C. Holmes et al., "DeepSpeed-FastGen", 2024, section 3.
# - A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI
#   2024, section 4.
# - L. Kleinrock, "Queueing Systems", volume 1 (1975), section 5.6; volume 2 (1976), section 4.4.
# - J. Little, "A Proof for the Queuing Formula L = λW", Operations Research 9 (1961).
