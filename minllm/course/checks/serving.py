"""The ladder for admission by deadline: by hand, and before the engine on the CPU, whose steps are the clock."""

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercise import Exercise, Rung

PLACES, TOKENS, ARRIVALS, PATIENCE = 4, 8, 40, 24  # one request arrives per step, twice as many as the engine can compute
NO_WAIT = "the wait is left out: total - places completions have to end before this one begins."


def answers(admission_class, places: int, seconds: float | None, cases: list[tuple[int, float | None, bool, str]]) -> None:
    """Ask a reader's class; cases: (total, deadline, the right answer, the likely cause of the other one)."""
    admission = admission_class(places)
    if seconds is not None:
        admission.observe(seconds)
    for total, deadline, expected, cause in cases:
        got = admission.admits(total, deadline)
        note(f"{places} places, {total} in all, deadline {deadline}", got)
        if bool(got) != expected or got is None:
            mean = "nothing has ended yet" if seconds is None else f"completions take {seconds:g}"
            raise Mismatch(
                f"{places} places, {mean}: admits(total={total}, deadline={deadline}) is {got}; expected {expected}\nLikely cause: {cause}"
            )


def nothing_known(admission_class) -> None:
    """Check that a request is refused for its deadline alone, and by what is known."""
    answers(admission_class, 2, None, [(1, 0.1, True, "self.seconds is None until a completion has ended: admit everybody until then.")])
    answers(admission_class, 2, 5.0, [(9, None, True, "deadline is None for a request that has no limit.")])


def free_place(admission_class) -> None:
    """Check a request that need not wait."""
    slow = "a request that begins at once still takes self.seconds."
    negative = "total - places is below 0 while places are free: nobody waits less than nothing."
    answers(admission_class, 4, 2.0, [(1, 2.0, True, negative), (1, 1.9, False, negative), (4, 2.0, True, slow), (4, 1.0, False, slow)])


def behind_others(admission_class) -> None:
    """Check requests that wait."""
    rounds = "self.places completions end per self.seconds, not one: divide the number ahead by the places."
    answers(admission_class, 4, 2.0, [(12, 6.0, True, rounds), (12, 5.9, False, NO_WAIT), (6, 3.0, True, rounds), (6, 2.9, False, NO_WAIT)])
    answers(admission_class, 1, 0.5, [(3, 1.5, True, rounds), (3, 1.4, False, NO_WAIT)])


def served(admission, llm) -> tuple[int, int, int]:
    """(in time, late, refused) of requests that arrive faster than the engine computes. The unit of time is a step."""
    from minllm.engine.requests.sampling_params import SamplingParams

    engine, params = llm.llm_engine, SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    arrived, begun, ended, refused, step = {}, {}, {}, 0, 0
    while step < ARRIVALS or engine.has_unfinished_requests():
        if step < ARRIVALS:
            if admission.admits(len(arrived) - len(ended) + 1, PATIENCE):
                arrived[str(step)] = step
                engine.add_request(str(step), [1 + step] * 5, params)
            else:
                refused += 1
        step += 1
        for output in engine.step():
            begun.setdefault(output.request_id, step)
            if output.finished:
                ended[output.request_id] = step
                admission.observe(step - begun[output.request_id] + 1)
    late = sum(ended[name] - arrived[name] > PATIENCE for name in arrived)
    return len(arrived) - late, late, refused


def in_the_engine(admission_class) -> str:
    """Check a reader's class before the engine on the CPU, under twice the load that it can serve."""
    from minllm.engine.llm import LLM

    with LLM(device="cpu", dtype="float32", max_num_seqs=PLACES, max_model_len=64) as llm:
        in_time, late, refused = served(admission_class(PLACES), llm)
    note("in time, late, refused", [in_time, late, refused])
    if late:
        raise Mismatch(
            f"{in_time} requests ended in time, {late} late, {refused} were refused; none should be late\nLikely cause: {NO_WAIT}"
        )
    if in_time < ARRIVALS // 3:
        raise Mismatch(
            f"only {in_time} of {ARRIVALS} requests were admitted, and the engine was idle\nLikely cause: the wait is overestimated."
        )
    return f"{in_time} of {ARRIVALS} requests in time, {refused} refused at once, none late"


EXERCISES = (
    Exercise(
        name="serving.admits",
        lesson=22,
        title="admission by deadline",
        module="minllm.server.deadline_admission",
        entry="DeadlineAdmission",
        task="Return True if deadline is None, or if self.seconds, the mean time of a completion, is still None. Otherwise predict when "
        "the new completion ends: those of `total` that do not fit into self.places have to end before it, self.places of them per "
        "self.seconds, and then it takes self.seconds itself. Return whether that is within the deadline.",
        hints=(
            "With 4 places and 12 in all, 8 have to end first: two rounds of 4. Then comes its own round.",
            "While places are free nobody is ahead: max(0, total - self.places).",
        ),
        rungs=(
            Rung("nothing is known", "nobody is refused without a reason.", nothing_known),
            Rung("a free place", "a request that begins at once takes time too.", free_place),
            Rung("behind others", "several places are given back at a time.", behind_others),
            Rung("before the engine", "twice the load that the engine can serve: no admitted request is late.", in_the_engine),
        ),
    ),
)
