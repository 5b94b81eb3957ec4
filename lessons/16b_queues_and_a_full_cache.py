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
# # 16b. Queues and a full cache
#
# A server has two limits that no policy of [lesson 16a](16a_batching_many_requests.py) can move: the requests that it
# can bear per second, and the keys and values that fit in its cache. Near the first, answers slow down; at the second,
# somebody loses their place.
#
# ```mermaid
# flowchart LR
#     A["arrives"] --> W["waits<br/>in the queue"]
#     W -- "a slot, and blocks<br/>for its prompt" --> P["prefill"]
#     P --> D["decodes"]
#     D --> E["ends"]
#     D -- "preempted:<br/>no block is free" --> W
# ```
#
# $$\rho = \lambda\,(S + o\,\beta) \qquad \text{TPOT} = \frac{\alpha}{1 - \rho}$$
#
# $\lambda$ requests arrive per second. Each brings a prompt that takes $S$ seconds, and gets an answer of $o$ tokens.
# $\alpha$ is the time to read the weights, $\beta$ the time to read one sequence's keys and values. So $\rho$, the
# *utilisation*, is the work that arrives per second, in seconds, and TPOT, the time per output token, grows without
# bound as it nears 1. In the package this is:

# %% tags=["hide-input"]
from minllm.costs import Load
from minllm.course import show_source

show_source(Load.tpot)

# %% [markdown]
# **What you will be able to do**
#
# - write the loop that lets requests in, and say what it must never do;
# - predict from a model's bytes and FLOPs how many requests per second a server can take;
# - decide what to do when the cache is full.
#
# You need [lesson 16a](16a_batching_many_requests.py), and no GPU: the server is simulated.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    token_at_half_load="At half of the load that a server can take, by what factor does the time per token grow over "
    "that on an idle one?",
    static_first_token="At that load, by what factor is the first token later with static batching than with "
    "SplitFuse?",
    never_preempting="The cache is too small for the batch. Server 1 keeps room for the longest possible answer "
    "of each request, and never preempts. Server 2 throws computed tokens away and computes them "
    "again. How much faster is server 1? (1: equally fast)",
)
guess.ask()

# %% [markdown]
# ## Who enters a step
#
# `prefill` is the door: it spends what decodes leave of a step's budget, first on prompts that have begun, then on
# requests that wait. Write it:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("scheduling.prefill")

# %% [markdown]
# Now see the engine's:

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
# !!! tip "Takeaway"
#     First come, first served, and nobody overtakes: otherwise a long prompt could wait for ever.
#
# ## The law
#
# ??? info "Where the equation comes from"
#     Prompts take the share $\lambda S$ of each second and decodes take the rest, so that
#     $\text{TPOT}=(\alpha+\beta n)/(1-\lambda S)$ with $n$ sequences that decode. Little's law gives their number: the
#     arrival rate times the time that each takes, $n = \lambda\, o\, \text{TPOT}$. Solve both for TPOT.
#
#     This is the law of *processor sharing* (Kleinrock): all requests are served at once, and all slow down. $\rho$ does
#     not include reading the weights, because all requests share that. Prompts, in contrast, queue. Their mean wait is
#     the Pollaczek-Khinchine formula, in which the time of a prompt enters squared:
#     $w = \lambda\, E[S^2] \,/\, (2\,(1 - \lambda S))$. One prompt of 4,000 tokens delays the others more than four of
#     1,000.
#
# Sharing ends when $n$ reaches $N$, the smallest of three numbers: the slots, the sequences that fit in the cache, and
# the ridge. This load is the **knee**, $\lambda = 1 / (S + o\,(\beta + \alpha / N))$.

# %%
from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.simulated import simulate
from minllm.bench.serving.workload import Lengths, Workload
from minllm.costs import StepCosts
from minllm.course import load_record
from minllm.models.shapes import named_config

ceilings = load_record()["ceilings"]  # a large copy and cuBLAS, measured on an H200
rates = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
costs = StepCosts.of(named_config("llama-3.1-8b"), *rates)

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
# !!! tip "Takeaway"
#     Half load costs little, full load costs without bound. Policies move waiting from one user to another.
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

# %% tags=["hide"]
assert full["keep the limit"].num_preemptions == 0 and gain < -10

# %% [markdown]
# Never preempting is *slower*. Reserving room for answers that end early makes the batch smaller in every step; a
# preemption costs one prefill, now and then. On a GPU, `minllm bench serve --compare-preemption` measures all three.
#
# !!! tip "Takeaway"
#     Fill the cache, and let the newest go when it is full: rare recomputation costs less than empty room.
#
# ## Measured against predicted

# %% tags=["hide-input"]
guess.against(
    token_at_half_load=token_ratio,
    static_first_token=static_ratio,
    never_preempting=1 + gain / 100,
)

# %% tags=["hide-input"]
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

# %% [markdown]
# A simulated rate is an upper bound, because it leaves out the time of launches, activations and the host. The smaller
# the model, the more these matter.
#
# ## Exercises
#
# The loop above is this lesson's, and one of the five parts of [the final project](../docs/project.md).
#
# ## A detective case
#
# This fault is not in a kernel.

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("fewer_every_day")

# %% [markdown]
# ## Problems
#
# All problems are about the 8B shape on an H200, with $\alpha$, $\beta$ and $S$ from above.
#
# ??? question "1. Answers have 128 tokens, TPOT is 6 ms, and 40 requests arrive per second. How many decode at a time?"
#     Little's law: 40 · 128 · 0.006 = 31. The policy does not matter.
#
# ??? question "2. Weights in 4 bits, arithmetic still in bfloat16. How do TPOT on a nearly idle server and the knee change?"
#     A quarter of the bytes: α falls from 3.5 ms to about 0.9 ms, and TPOT with it. The ridge falls from 184 sequences
#     to about 46, but the knee hardly moves: arithmetic sets it, and arithmetic has not changed.
#
# ??? question "3. Half of all prompts take twice as long as before, the other half next to none. How does their wait change?"
#     E[S] is the same, E[S²] is twice as large, and so is the wait.
#
# ??? question "4. A sequence of 1,000 tokens is preempted. Over PCIe at 50 GB/s, should it be swapped?"
#     Twice 131 MB take 5.4 ms; computing 1,000 tokens takes 18 ms of a step that others wait for. Swap it,
#     if the host has room.
#
# ??? question "5. At ρ = 0.9 a token takes ten times α. A second H200 at 4 dollars per hour halves the load of each. How long does a token take then?"
#     α / (1 − 0.45) = 1.8 α. Twice the money makes tokens 5.5 times faster: near the knee, capacity is cheap.

# %% tags=["hide"]
assert round(40 * 128 * 0.006) == 31
assert 180 < costs.ridge < 200 and 3.4 < 1e3 * load.empty_step < 3.6
assert 5.2 < swap_ms(config, 1000, host_rates) < 5.5
assert 16.5 < recompute_ms(config, 1000, host_rates) < 18.5
assert round((1 - 0.45) / (1 - 0.9), 1) == 5.5

# %% [markdown]
# ## What next, and which measurement says so
#
# The knee is the load at which linear layers stop being shared. At $N$ = 184 sequences arithmetic sets it, and no
# policy can move it. To go beyond it, each token must cost less: fewer bits per weight, tokens that a small model
# proposes, experts of which few are used, or [more GPUs](20_several_gpus.py). [Lesson 17](17_the_whole_engine.py) puts
# the whole engine together.
#
# ## Sources
#
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
#   SOSP 2023, sections 4.5 and 4.6.
# - L. Kleinrock, "Queueing Systems", volume 1 (1975), section 5.6; volume 2 (1976), section 4.4.
# - J. Little, "A Proof for the Queuing Formula L = λW", Operations Research 9 (1961).
