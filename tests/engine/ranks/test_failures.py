"""Ranks that fail at random moments leave nothing: tools/fail_ranks.py, with a stopped rank; with --exhaustive a dozen failures."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("fail_ranks", Path(__file__).parents[3] / "tools/fail_ranks.py")
fail_ranks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fail_ranks)


def test_nothing_is_left_after_a_failure(request):
    if request.config.getoption("exhaustive"):
        given = dict(ranks=2, device="cpu", seconds=float("inf"), at_once=2, seed=1, step_seconds=1.0)
        outcomes = fail_ranks.run(12, **given) + fail_ranks.run(6, **given, stages=2)
        assert len(outcomes) == 18
    else:
        outcomes = [fail_ranks.let_fail(fail_ranks.Failure("stop", 1, 0.1), ranks=2, device="cpu", step_seconds=0.5)]
    for outcome in outcomes:
        assert not outcome.faults, "\n".join([str(outcome.failure), *outcome.faults])


def test_a_process_that_is_left_is_found_and_ended():
    marked, mark = fail_ranks.subprocess.Popen(["sleep", "60"], env={fail_ranks.MARK: "left by this test"}), "left by this test"
    try:
        fail_ranks.LEFT_S, kept = 0.2, fail_ranks.LEFT_S
        while not fail_ranks.marked(mark):  # the kernel shows the environment of a new program a moment after it has begun
            assert marked.poll() is None
        assert fail_ranks.marked(mark) == [marked.pid]
        assert fail_ranks.end_what_is_left(mark) == [f"process {marked.pid} was left"]
        assert marked.wait(5) == -fail_ranks.signal.SIGKILL
    finally:
        fail_ranks.LEFT_S = kept
        marked.kill()


def test_kinds_take_turns_and_rank_0_is_only_killed():
    chosen = [fail_ranks.chosen(number, 4, seed=0) for number in range(60)]
    assert [one.kind for one in chosen[:3]] == list(fail_ranks.KINDS)
    assert {one.rank for one in chosen if one.kind == "kill"} == {0, 1, 2, 3}
    assert {one.rank for one in chosen if one.kind != "kill"} == {1, 2, 3}
