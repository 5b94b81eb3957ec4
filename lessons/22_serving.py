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
# # 22. Serving: queues, first tokens and fairness
#
# An engine computes tokens. A server lets strangers ask for them. It reads their requests, decides who may enter, lets
# the others wait or sends them away, passes on every token as it comes, and notices when somebody leaves.
#
# ```mermaid
# flowchart LR
#     client["a client"] --> parse["read,<br/>check"] --> admit["admit,<br/>or 429"]
#     admit --> queue["queue"] --> batch["P places<br/>in the batch"]
#     batch --> stream["stream of<br/>events"] --> reader["the client"]
# ```
#
# TTFT, the time to the first token, is the sum of what happens on this way:
#
# $$\text{TTFT} = t_\text{read} + t_\text{queue} + t_\text{prefill} + t_\text{send} \qquad
# t_\text{queue} \approx s\,\frac{\max(0,\ L - P)}{P}$$
#
# $L$ is the number of open requests, the new one among them; $P$ the number of places in the batch; $s$ the mean time
# for which a request keeps its place. The second formula is Little's law: $P$ requests end per $s$, so $L - P$ of them
# take $s\,(L - P) / P$. This is who may enter:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.server.admission import Admission

show_source(
    Admission.admitted,
    docstring=False,
    notes={
        "total > self.most": "A queue without a limit grows without a limit. Status 429 asks the client to come back.",
        "self.deadlines.admits": "The exercise of this lesson.",
        "self.most_per_key": "Fairness: one user cannot fill the queue alone.",
        "finally": "However the request ends, its places are given back.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - say which part of TTFT grows with load, and predict it;
# - choose between a queue, a limit and a deadline, and say who pays;
# - find out whether a delay comes from the engine or from what surrounds it.
#
# You need lesson [16b](16b_queues_and_a_full_cache.py). You need no GPU. The server needs Linux or macOS.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    ttft_growth="Requests arrive at half of the rate that a server can serve, then at twice that rate: 48 requests, and "
    "all may wait. By what factor does the median TTFT grow?",
    percent_in_time="At twice the rate every request wants its answer within four times the time that an answer takes. "
    "All are let in, first come, first served. What percentage of them end in time?",
    percent_in_time_refusing="Now the server refuses those that would be late. What percentage of all requests end in "
    "time?",
    after_leaving=(
        "A client closes its connection after the first of 400 tokens. How many of the others does the engine still "
        "compute?",
        "nearly all",
        "those of a timeout",
        "hardly any",
    ),
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# Before you follow a request through the server, decide whether it gets in: can it still end in time? If not, it is
# refused at once, and takes no work from others. Write the rule; section *Admission* shows what it is worth.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("serving.admits")

# %% [markdown]
# ## One request, on the wire
#
# `serving` runs the package's server in a thread of this process. `minllm serve` is the same server with its engine in
# a process of its own, so that HTTP and the engine do not share one Python interpreter's lock. The two exchange one
# frame of JSON per step.

# %%
import http.client
import json
import time

from minllm import AsyncLLM
from minllm.server.in_process import serving

llm = AsyncLLM(device="cpu", dtype="float32", max_num_seqs=4, max_model_len=512)


def stream(address, **body):
    """(connection, response) of a streamed completion."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    head = {"content-type": "application/json"}
    body = json.dumps({"prompt": "import os", "stream": True, **body})
    connection.request("POST", "/v1/completions", body, head)
    return connection, connection.getresponse()


with serving(llm) as served:
    connection, response = stream(served.address, max_tokens=3, temperature=0)
    events = [line.decode().strip() for line in response if line.strip()]
for event in events:
    print(event if len(event) < 80 else f"{event[:24]} ... {event[-55:]}")

# %% tags=["hide"]
assert '"finish_reason":"length"' in events[-2] and events[-1] == "data: [DONE]"

# %% [markdown]
# A stream is a sequence of *server-sent events*: lines that begin with `data:`. The last chunk of a completion has a
# `finish_reason`. Only that says that the answer is complete, since a connection can also close because a proxy or a
# network gave up.
#
# !!! tip "Takeaway"
#     TTFT has four parts. A stream has an end of its own, which is not the connection's end.
#
# ## A client leaves

# %%
with serving(llm) as served:
    connection, response = stream(served.address, max_tokens=400, ignore_eos=True)
    response.readline()
    held, before = llm.stats().kv_cache_usage, llm.stats().num_steps
    response.close()
    connection.close()
    while llm.stats().num_running:
        time.sleep(0.0005)
    steps_after = llm.stats().num_steps - before
    after = llm.stats().kv_cache_usage
print(f"the cache: {held:.2%} in use, then {after:.0%}; {steps_after} more steps")

# %% tags=["hide"]
assert held > 0 and after == 0 and steps_after < 100

# %% [markdown]
# The server waits for two things at a time: the next token, and the end of the connection. If the connection ends
# first, it aborts the request, and the scheduler frees the blocks before its next step. Without this, the request would
# have computed 400 tokens that nobody reads.
#
# !!! tip "Takeaway"
#     A request holds a place and blocks. Every way in which it can end must give them back.
#
# ## Load
#
# Now 48 requests come at random times, at several rates. These runs were recorded: this server, with four places. A
# step was held to 60 ms, and 1 ms more per token of a prompt, so that other work of that machine shows little. Load 1 is
# the rate that the server can serve.

# %%
import numpy as np

from minllm.course import load_record

record = load_record("serving_runs")
label = f"recorded on a {record['device']}, {record['date']}, commit "
label += record["commit"][:7]
deadline = record["deadline_ms"]
runs = {(row["case"], row["load"]): row["requests"] for row in record["rows"]}
loads = sorted({load for _, load in runs})


def first_tokens(case, load, kinds=("question", "document", "a", "b")):
    """TTFT in ms of the requests that were answered."""
    return [
        first - arrival
        for kind, arrival, first, _ in runs[case, load]
        if first is not None and kind in kinds
    ]


def percent_in_time(case, load):
    """Percentage of all requests that ended before the deadline."""
    in_time = [
        first is not None and end - arrival <= deadline
        for _, arrival, first, end in runs[case, load]
    ]
    return 100 * np.mean(in_time)


WAIT, FEW, LATE = "everybody waits", "at most 4 wait", "refuses who would be late"
for load in loads:
    median, worst = np.percentile(first_tokens(WAIT, load), (50, 99))
    print(f"load {load}: TTFT p50 {median:5,.0f} ms, p99 {worst:6,.0f} ms")
print(label)

# %% tags=["fold"]
from minllm.course import curves

curves(
    {
        case: [(load, np.median(first_tokens(case, load))) for load in loads]
        for case in (WAIT, FEW, LATE)
    },
    "load",
    "median TTFT, ms",
    "The first token under load, of requests that were answered",
    log_y=True,
    caption=f"The bundled model, four places: {label}.",
)

# %% [markdown]
# Below load 1 a queue is short and empties again. Above it, it grows for as long as the load lasts: the wait says more
# about the length of the run than about the server. The other two servers keep TTFT short because they send requests
# away. Try it, request by request ([the page](../docs/serving-load.md)):
#
# <!-- interactive: serving-load -->
#
# !!! tip "Takeaway"
#     Prefill and HTTP cost the same at any load. The queue is what grows.
#
# ## Admission
#
# At load 2 half of the requests cannot be served, whatever the server does. It can only choose which. Say that an
# answer is worth nothing after its deadline:

# %%
in_time = {
    case: [percent_in_time(case, load) for load in loads] for case in (WAIT, FEW, LATE)
}
print("in time, at load".ljust(26), *(f"{load:8}" for load in loads))
for case, shares in in_time.items():
    print(f"{case:26}", *(f"{share:6.0f} %" for share in shares))
growth = np.median(first_tokens(WAIT, 2.0)) / np.median(first_tokens(WAIT, 0.5))

# %% tags=["hide"]
assert in_time[WAIT][-1] < 40 and in_time[FEW][-1] > in_time[LATE][-1] > 50
assert in_time[WAIT][2] > in_time[LATE][2] and growth > 10

# %% [markdown]
# First come, first served treats everybody alike: soon all requests are late, and the engine is busy with answers that
# come too late. A short queue keeps the wait short, by a number that somebody has to choose; four was a good choice for
# these answers and this deadline. Admission by deadline computes the number from $s$, $L$ and $P$, and follows when
# answers get longer. It is no oracle: it knows the mean length alone, so it cuts off some that it let in, and refuses
# some at load 1.2 that would have made it. Who is refused learns so at once, and can go elsewhere.
#
# !!! tip "Takeaway"
#     Under overload, refuse early. Work for an answer that will be late is taken from one that would not be.
#
# ## Who waits for whom
#
# *Head-of-line blocking*: a document of 448 tokens is in front, and the short questions behind it wait. Every eighth
# request is a document here. The engine can compute it in one step of up to 512 tokens, or in chunks of 32:

# %%
LARGE, SMALL = "documents, 512 tokens per step", "documents, 32 tokens per step"
found = {}
for case in (LARGE, SMALL):
    questions = [one for one in runs[case, 0.5] if one[0] == "question"]
    answers = np.median([end - first for _, _, first, end in questions])
    found[case] = np.median(first_tokens(case, 0.5, ["question"])), answers
    first = found[case][0]
    print(f"{case}: questions wait {first:.0f} ms, then {answers:.0f} ms")

# %% tags=["hide"]
assert found[LARGE][0] < found[SMALL][0] and found[LARGE][1] > found[SMALL][1]

# %% [markdown]
# Chunks help those who have their first token: no step is long, so their next tokens come sooner. They do not help
# those who wait in line, because the document now stays at its head for 14 steps. To let questions pass, give
# documents a later `priority`; then the documents wait.

# %%
ONE_QUEUE, LIMITED = "two users, one queue", "two users, at most 3 open requests each"
waits = {}
for case in (ONE_QUEUE, LIMITED):
    for user in "ab":
        waits[case, user] = np.median(first_tokens(case, 2.0, [user]))
        asked = [first for kind, _, first, _ in runs[case, 2.0] if kind == user]
        print(
            f"{case}: {user.upper()} waits {waits[case, user]:5,.0f} ms, "
            f"{asked.count(None)} of {len(asked)} refused"
        )

# %% tags=["hide"]
assert waits[ONE_QUEUE, "b"] > 5 * waits[LIMITED, "b"]

# %% [markdown]
# *Fairness*: user A sends two of three requests, and both together twice what the server can serve. In one queue, user
# B waits for A's requests, although B alone would not fill the server. With a limit of open requests per API key, nobody
# waits long. Its price: B is refused too, when B has more than three requests at a time.
#
# !!! tip "Takeaway"
#     A queue is fair to requests. A limit per key is fair to users.
#
# ## What no engine metric shows
#
# Tokens that the engine has made still pass through the server's event loop, which does one thing at a time. A body of
# many megabytes, parsed in one go, holds up all streams, while the engine's metrics stay flat. So the server measures
# how late its own timer fires. `/metrics` has it as `minllm:event_loop_lag_seconds`:

# %%
with serving(llm) as served:
    time.sleep(0.3)
    connection = http.client.HTTPConnection(served.address.removeprefix("http://"))
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
for line in metrics.splitlines():
    if line.startswith("minllm:event_loop_lag_seconds_") and "created" not in line:
        if "sum" in line or "count" in line or '"0.005"' in line:
            print(line)
llm.shutdown()

# %% tags=["hide"]
assert "minllm:event_loop_lag_seconds_count" in metrics

# %% [markdown]
# On an H200 (2026-11-28, commit fde0636; the shape of Llama 3.1 8B, 256 requests at once) HTTP served 19,849 tokens/s
# and the engine alone 19,897. With 16 requests per second the median TTFT was 15.3 ms over HTTP and 14.0 ms without.
# `python tools/measure_server.py` measures it.
#
# !!! tip "Takeaway"
#     Measure at the client. Between two measurements that disagree lies the fault.
#
# ## Measured against predicted

# %% tags=["hide-input"]
guess.against(
    ttft_growth=growth,
    percent_in_time=in_time[WAIT][-1],
    percent_in_time_refusing=in_time[LATE][-1],
    after_leaving="hardly any",
)

# %% [markdown]
# ## Exercises
#
# This lesson's exercise is above.
#
# The last case of the check puts your function before the engine on the CPU, which gets twice the load that it can
# serve. `minllm serve --refuse-late` uses the same function.
#
# ## Detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("half_a_sentence")

# %% [markdown]
# <!-- aside: Two more cases -->

# %% tags=["hide-input"]
show_case("rooms_without_guests")

# %% tags=["hide-input"]
show_case("calm_dashboard")

# %% [markdown]
# <!-- end aside -->
#
# ## Problems
#
# ??? question "1. A GPU server has 64 places, and an answer takes 4 s. 160 requests are open. How long does the next one wait for its place?"
#     It is the 161st: 161 - 64 = 97 have to end, and 64 end per 4 s: 6.1 s.
#
# ??? question "2. That server costs 4 dollars per hour. What does an answer cost at full load, and what if a third of the answers come after their deadline?"
#     64 answers per 4 s are 57,600 per hour: 0.0069 cents each. If a third is worth nothing, the useful ones cost half
#     as much again: 0.0104 cents.
#
# ??? question "3. Clients that get status 429 try again after one second, all of them. 100 clients do so, and 10 places are free. What happens in the next seconds, and what should a client do?"
#     100 arrive together, 90 are refused, and come back together one second later, for ten rounds. A client should wait
#     a random time that doubles with each attempt. openai-python does.
#
# ??? question "4. The mean lag of an event loop is 0.3 ms, and its p99 is 80 ms. A step of the GPU takes 12 ms. What do users see?"
#     Nearly always nothing; now and then no token for some seven steps, and then seven tokens at once. The mean hides
#     it, because most timers fire while nothing happens.
#
# ??? question "5. A client reads its stream slowly. Its tokens pile up in the server: 512 streams of up to 4,096 tokens, 250 bytes per event. How much memory is that, and what can a server do?"
#     512 x 4,096 x 250 bytes = 524 MB. This server joins the tokens of a slow reader in one event, so the text counts,
#     not the events, and it cuts off a reader that takes nothing for `--io-seconds`.

# %% tags=["hide"]
assert round(4 * (161 - 64) / 64, 1) == 6.1
hourly = 64 / 4 * 3600
assert round(100 * 4 / hourly, 4) == 0.0069 and round(150 * 4 / hourly, 4) == 0.0104
assert round(512 * 4096 * 250 / 1e6) == 524 and 80 // 12 in (6, 7)

# %% [markdown]
# ## What next, and the measurement behind it
#
# At load 2 the refused half needs another server: several replicas, and a router that sends a request to where its
# prefix is cached ([lesson 11](11_paged_blocks_and_shared_prefixes.py)). To serve your own model, see
# [Serve a model](../docs/serve.md).
#
# ## Sources
#
# - J. D. C. Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9, 1961.
# - M. Harchol-Balter, "Performance Modeling and Design of Computer Systems", 2013, chapters 6 and 14.
# - Y. Zhong et al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model
#   Serving", OSDI 2024, section 2 (goodput).
# - Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
# - WHATWG, "HTML Living Standard", section 9.2, server-sent events.
