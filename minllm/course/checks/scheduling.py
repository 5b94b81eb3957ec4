"""Ladders for the scheduler: a policy, and the loop that fills a step with prompts.

Both are checked by the steps that they plan. Steps are planned for a simulated server without a model (bench/serving/simulated.py) and
written as strings: "a1 b7" is one token of request a and seven of b. The last rung of the policy uses it in the engine on the CPU.
"""

from collections.abc import Mapping, Sequence

from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import SimulatedEngine, simulate
from minllm.bench.serving.workload import Lengths, Workload
from minllm.costs.serving import StepCosts
from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercise import Exercise, Rung
from minllm.engine.scheduling.in_flight import InFlightBatching
from minllm.engine.scheduling.prefill_first import PrefillFirst
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.scheduling.split_fuse import SplitFuse
from minllm.models.shapes import named_config

H200_TB_S, H200_TFLOPS = 4.273, 818.6
MOST_STEPS = 60  # limit per case; right solutions take at most 20
NOTHING = "nothing"  # a step without spans, although requests have not ended


def steps_of(policy, requests: Mapping[str, tuple[int, int]], budget: int = 8, make_scheduler=Scheduler, **sizes) -> list[str]:
    """The steps that serve requests, {name: (prompt, tokens to generate)}; the first request arrives a step before the others."""
    costs = StepCosts.of(named_config("llama-3.2-1b"), H200_TB_S, H200_TFLOPS)
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=budget, steps_ahead=0, make_scheduler=make_scheduler) | sizes
    engine = SimulatedEngine(costs, policy, **sizes)
    found, unsent = [], list(requests)
    while (unsent or engine.has_unfinished_requests()) and len(found) < MOST_STEPS:
        for name in unsent[: None if found else 1]:
            engine.add_request(name, [1] * requests[name][0], greedy(requests[name][1]))
            unsent.remove(name)
        before = len(engine.runner.steps)
        engine.advance()
        computed = [f"{span.request_id}{span.length}" for step in engine.runner.steps[before:] for span in step.spans]
        found.append(" ".join(computed) or NOTHING)
        if not computed:
            break
    return found


def expect_steps(got: Sequence[str], expected: Sequence[str], suspects: Mapping[str, Sequence[str]]) -> None:
    """Raise Mismatch at the first step that differs; suspects: {mistake: enough of its steps to identify it}."""
    note("steps", list(got))
    if list(got) == list(expected):
        return
    number = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
    of = [steps[number] if number < len(steps) else "not there: all have ended" for steps in (got, expected)]
    lines = [f"step {number} is {of[0]}; expected {of[1]}", f"all steps: {', '.join(got)}"]
    cause = next((cause for cause, steps in suspects.items() if list(got[: len(steps)]) == list(steps)), "")
    raise Mismatch("\n".join([*lines, *([f"Likely cause: {cause}"] if cause else [])]))


# The policy

ALONE = {"a": (3, 3)}
BESIDE = {"a": (3, 4), "b": (5, 2)}
LONG = {"a": (3, 5), "b": (18, 2)}
SHORT = {"a": (3, 3), "b": (2, 2), "c": (3, 2), "d": (4, 2)}
WITHOUT_DECODES = "nobody who runs gets a token: scheduler.decode(step) is missing, or comes only when there are no prompts."
WITHOUT_PROMPTS = "no prompt is computed while one decodes: decodes and prompts share a step, so call scheduler.prefill(step) always."
NOBODY_ENTERS = "no waiting request is let in: scheduler.prefill(step) lets them in, unless admits=False."
PROMPTS_FIRST = "prompts were added before decodes, so a decodes a token that this very step has yet to sample: decodes come first."


def one_request(policy):
    """Check a single request: its prompt, then its tokens."""
    expect_steps(steps_of(policy(), ALONE), ["a3", "a1", "a1"], {
        NOBODY_ENTERS: [NOTHING], WITHOUT_DECODES: ["a3", NOTHING], PROMPTS_FIRST: ["a3 a1"],
    })  # fmt: skip


def beside(policy):
    """Check a prompt that arrives while another request decodes."""
    expect_steps(steps_of(policy(), BESIDE), ["a3", "a1 b5", "a1 b1", "a1"], {
        WITHOUT_PROMPTS: ["a3", "a1", "a1", "a1", "b5"],
        "a's token had to wait for b's prompt: decodes do not wait, whatever else is in the step.": ["a3", "b5"],
    })  # fmt: skip


def split(policy):
    """Check a prompt of more tokens than the budget."""
    expect_steps(steps_of(policy(), LONG), ["a3", "a1 b7", "a1 b7", "a1 b4", "a1 b1"], {})


def fused(policy):
    """Check prompts that together exceed a step by one token."""
    expect_steps(steps_of(policy(), SHORT), ["a3", "a1 b2 c3 d2", "a1 b1 c1 d2", "d1"], {
        "d's prompt was not split: whole=True is in-flight batching; SplitFuse takes what fits.": ["a3", "a1 b2 c3", "a1 b1 c1 d4"],
    })  # fmt: skip


def under_load(policy):
    """Check a simulation of the 8B shape on an H200 under load: the longest gap is a step of the budget."""
    costs = StepCosts.of(named_config("llama-3.1-8b"), H200_TB_S, H200_TFLOPS)
    requests = arriving(Workload(60, Lengths((64, 256, 4096)), Lengths((16, 120), is_range=True)).requests(), 20.0)
    gaps = []
    for tried in (policy(), PrefillFirst()):
        run, _ = simulate(costs, requests, tried, max_num_batched_tokens=512)
        gaps.append(calculate_metrics(run).itl.p99)
    note("99 % of gaps between tokens", gaps[0])
    if gaps[0] > 15:
        raise Mismatch(
            f"99 of 100 gaps between tokens are below {gaps[0]:.0f} ms; with a budget of 512 tokens they should be below 15 ms\n"
            "Likely cause: some step leaves out sequences that decode, or holds more tokens than its budget."
        )
    return f"simulated: 99 of 100 gaps below {gaps[0]:.0f} ms; {gaps[1]:.0f} ms if prompts go first"


def on_the_cpu(policy):
    """Check that the bundled model generates the same texts with this policy as with the package's."""
    from minllm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=6)
    prompts = [[*range(5, 5 + length)] for length in (3, 40, 9)]
    texts = []
    with LLM(device="cpu", dtype="float32", max_num_seqs=4, max_num_batched_tokens=16) as llm:
        for tried in (SplitFuse(), policy()):
            llm.engine.scheduler.policy = tried
            texts.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
    note("tokens", [list(tokens) for tokens in texts[1]])
    if texts[0] != texts[1]:
        raise Mismatch(f"the engine generated {texts[1]}; expected {texts[0]}")
    return "the engine on the CPU generates the same text with it"


# The loop that fills a step with prompts


def planned(make_scheduler, requests, policy=SplitFuse, **sizes):
    """The steps that a reader's Scheduler plans."""
    return steps_of(policy(), requests, make_scheduler=make_scheduler, **sizes)


def within_the_budget(make_scheduler):
    """Check that the prompts of a step share its budget."""
    expect_steps(planned(make_scheduler, {"a": (3, 1), "b": (6, 1), "c": (6, 1)}), ["a3", "b6 c2", "c4"], {
        "the budget does not shrink: _add_chunk returns the tokens that it added.": ["a3", "b6 c6"],
        "c has begun, and its prompt was not continued: running sequences that are not prefilled go first.": ["a3", "b6 c2", NOTHING],
        "c was not split: a chunk is as long as the rest of the budget allows.": ["a3", "b6", "c6"],
        "nobody was let in: go on while there is a first waiting sequence that _enter lets in.": [NOTHING],
        "only one sequence is let in per step: go on while there is budget.": ["a3", "b6", "c6"],
    })  # fmt: skip


def decodes_count(make_scheduler):
    """Check that the decodes of a step reduce the budget for prompts."""
    expect_steps(planned(make_scheduler, {"a": (3, 4), "b": (17, 1)}), ["a3", "a1 b7", "a1 b7", "a1 b3"], {
        "the step's tokens so far, step.num_tokens, count against the budget.": ["a3", "a1 b8"],
    })  # fmt: skip


def begun_first(make_scheduler):
    """Check that a partly computed prompt is finished before others begin."""
    expect_steps(planned(make_scheduler, {"a": (3, 1), "b": (18, 1), "c": (2, 1)}), ["a3", "b8", "b8", "b2 c2"], {
        "c overtook b, whose prompt has begun: continue those that run first.": ["a3", "b8", "c2 b6"],
        "b, which has begun, is not continued: loop over the running sequences that are not prefilled.": ["a3", "b8", "c2"],
    })  # fmt: skip


def slots(make_scheduler):
    """Check that no more sequences run than there are slots."""
    requests = {"a": (3, 3), "b": (2, 2), "c": (2, 1)}
    expect_steps(planned(make_scheduler, requests, max_num_seqs=2), ["a3", "a1 b2", "a1 b1", "c2"], {})


def full_of_decodes(make_scheduler):
    """Check a step with decodes that fill the budget."""
    requests = {"a": (1, 6), "b": (1, 5), "c": (3, 1)}
    expect_steps(planned(make_scheduler, requests, budget=2), ["a1", "a1 b1", "a1 b1 c1", "a1 b1 c1", "a1 b1 c1", "a1 b1"], {
        "c starves as long as decodes fill the budget: at least one token of a prompt is computed, max(1, ...).": ["a1", "a1 b1", "a1 b1"],
    })  # fmt: skip


def whole_prompts(make_scheduler):
    """Check that with whole=True a prompt that does not fit waits, and so do all after it."""
    requests = {"a": (3, 3), "b": (5, 1), "c": (4, 1), "d": (1, 1)}
    expect_steps(planned(make_scheduler, requests, InFlightBatching), ["a3", "a1 b5", "a1 c4 d1"], {
        "whole=True was ignored: c was split.": ["a3", "a1 b5 c2"],
        "d overtook c: a request that does not fit keeps its place, and all behind it wait.": ["a3", "a1 b5 d1"],
    })  # fmt: skip
    expect_steps(planned(make_scheduler, {"a": (3, 4), "b": (19, 1)}, InFlightBatching), ["a3", "a1 b7", "a1 b7", "a1 b5"], {
        "b, which is longer than any step, waits for an empty one: only prompts of up to max_num_batched_tokens wait.": ["a3", "a1", "a1"],
    })  # fmt: skip


def without_room(make_scheduler):
    """Check a cache of three blocks of 16 tokens: c, then b, are preempted, and wait until a has ended."""
    requests = {"a": (15, 4), "b": (15, 4), "c": (15, 2)}
    found = planned(make_scheduler, requests, budget=64, kv_cache_tokens=48)
    expect_steps(found, ["a15", "a1 b15 c15", "a1 b1", "a1", "b17 c16", "b1"], {})


EXERCISES = (
    Exercise(
        name="scheduling.split_fuse",
        lesson=16,
        title="Dynamic SplitFuse: what a step computes first",
        module="minllm.engine.scheduling.split_fuse",
        entry="SplitFuse",
        task="Fill the step by the scheduler's two methods: scheduler.decode(step) gives every running sequence whose prompt is computed "
        "its next token; scheduler.prefill(step) adds chunks of prompts up to what is left of the token budget, and lets waiting "
        "requests in.",
        hints=("The two differ in who pays: decode() takes no notice of the budget, prefill() takes what the step has left of it.",
               "The other policies beside it, in_flight.py and prefill_first.py, use the same verbs."),
        rungs=(
            Rung("one request", "prompt, then token after token.", one_request),
            Rung("a prompt beside a decode", "no decode waits for another request's prompt.", beside),
            Rung("a long prompt is split", "no step holds more tokens than the budget.", split),
            Rung("short prompts are fused", "the budget is used up, even by a part of a prompt.", fused),
            Rung("the simulated server", "under load no gap between tokens is longer than a full step.", under_load),
            Rung("the engine on the CPU", "your policy generates text.", on_the_cpu),
        ),
    ),
    Exercise(
        name="scheduling.prefill",
        lesson=16,
        title="the loop that fills a step with prompts",
        module="minllm.engine.scheduling.scheduler",
        entry="Scheduler",
        task="""A step holds at most self.max_num_batched_tokens tokens, and is filled from the left:

    | decodes: there already | prompts that have begun | waiting prompts, in order |
    |   step.num_tokens      |             budget, at least 1                      |

No prompt enters before those that have begun are continued.
Nobody overtakes: the first waiting sequence that must wait, or that cannot enter, ends the step.
There are never more sequences than slots, and without `admits` none enters.

self._add_chunk(sequence, budget, step) adds as much of a prompt as fits, and returns the number of its tokens; a sequence with \
sequence.is_prefilled needs none. self.queues.first_waiting() is None if the queue is empty. self.queues.has_free_slot, \
self._must_wait(sequence, budget, step, whole) and self._enter(sequence) are bools.""",
        hints=("Two loops: first over self.queues.running, then over the queue.",
               "A request that does not fit ends the loop: if those behind it overtook it, it might wait for ever."),
        rungs=(
            Rung("within the budget", "prompts of one step share its budget.", within_the_budget),
            Rung("decodes count", "what the step holds already is not available.", decodes_count),
            Rung("who has begun goes first", "a prompt is finished before others begin.", begun_first),
            Rung("slots", "no more sequences than slots.", slots),
            Rung("a step full of decodes", "no prompt starves.", full_of_decodes),
            Rung("whole prompts", "a prompt that does not fit waits, and no other overtakes it.", whole_prompts),
            Rung("no room in the cache", "a sequence that _enter does not let in waits, and the step goes on without it.", without_room,
                 look="_enter returns False if there is no room: then the loop ends."),
        ),
    ),
)  # fmt: skip
