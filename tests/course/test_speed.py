"""The rung that needs a GPU, with a clock that says what the test wants, on small arrays in the simulator."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue.noise import Noise
from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercises import EXERCISES
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.ops.cuda_ops import CudaOps

PLACE = "minllm.kernels.activation.silu:silu_and_multiply"
SMALL = functools.partial(speed_problems.silu, tokens=2, intermediate=5)
PROBLEMS = {
    "minllm.kernels.activation.silu:silu_and_multiply": SMALL,
    "minllm.kernels.embedding.lookup:embedding": functools.partial(speed_problems.embedding, tokens=3, hidden=5),
    "minllm.kernels.normalization.rms_norm:rms_norm": functools.partial(speed_problems.rms_norm, tokens=2, hidden=16),
    "minllm.kernels.rope.ladder.rope:rope": functools.partial(speed_problems.rope, tokens=2, heads=2, head_dim=8),
    "minllm.kernels.kv.ladder.append:append": functools.partial(speed_problems.append, tokens=16, row=3),
    "minllm.kernels.sampling.argmax:argmax": functools.partial(speed_problems.argmax, rows=2, vocabulary=37),
    "minllm.kernels.matmul.ladder.naive:matmul_naive": speed_problems.product(5),
    "minllm.kernels.matmul.ladder.warp_per_row:matmul_warp_per_row": functools.partial(speed_problems.gemv, outputs=5, inputs=33),
    "minllm.kernels.matmul.ladder.int4_naive:int4_naive": functools.partial(speed_problems.int4, outputs=5, inputs=64),
    "minllm.kernels.matmul.ladder.tiled:matmul_tiled": lambda *args: replace(
        speed_problems.product(5)(*args), options=dict(tile=(8, 4, 2))
    ),
    "minllm.kernels.matmul.ladder.warp_specialized:matmul_warp_specialized": speed_problems.product(64),
    "minllm.kernels.attention.ladder.materialized:attention": speed_problems.attention("materialized", 1, 3, 5, 2, 1, 16),
    "minllm.kernels.attention.ladder.flash_attention_1:attention": speed_problems.attention("flash_attention_1", 1, 3, 5, 2, 1, 16),
    "minllm.kernels.attention.split_kv.split_kv:attention": speed_problems.attention("split_kv", 2, 1, 5, 2, 1, 16),
}


class FakeMachine:
    """Kernels run in the simulator; launches take as long as they are told, the package's own kernel first."""

    copy_tb_s, tensor_core_tflops, speed_in_words = 4.0, 700.0, speed.Machine.speed_in_words

    def __init__(self, own_seconds, seconds):
        self.ops, self.clock, self.times = CudaOps(simulated=True), self, iter((own_seconds, seconds))

    def poison(self, array):
        array.view(np.uint8)[:] = 0xFF

    def seconds(self, calls):
        if len(calls) == 1:  # the first estimate, and before it a run to warm up
            self.launches = getattr(self, "launches", 0) + 1
            self.now = next(self.times) if self.launches % 2 else self.now
        return [self.now] * len(calls)


def on(monkeypatch, *seconds):
    monkeypatch.setattr(speed, "this_machine", lambda: FakeMachine(*seconds))


@pytest.mark.parametrize("place", PROBLEMS)
def test_a_problem_fits_the_packages_own_launcher(place, monkeypatch):
    on(monkeypatch, 1.0, 1.0)
    module, name = place.split(":")
    entry = getattr(__import__(module, fromlist=[name]), name)
    assert "the package's own kernel:" in speed.fast_enough(entry, place, PROBLEMS[place], "")


def test_every_rung_that_needs_a_gpu_has_a_problem_that_is_tried_here():
    rungs = [rung for exercise in EXERCISES for rung in exercise.rungs if rung.needs_gpu]
    assert len(rungs) >= 11 and {rung.run.keywords["place"] for rung in rungs} == set(PROBLEMS)


def test_half_of_the_packages_speed_is_enough_and_less_is_not(monkeypatch):
    on(monkeypatch, 1.0, 1.9)
    assert "% of a copy; the package's own kernel" in speed.fast_enough(silu_and_multiply, PLACE, SMALL, "")
    on(monkeypatch, 1.0, 2.1)
    with pytest.raises(Mismatch, match="(?s)at least half .*Likely cause: far apart"):
        speed.fast_enough(silu_and_multiply, PLACE, SMALL, "far apart")


def test_a_share_is_the_work_a_second_over_the_ceiling(monkeypatch):
    machine = FakeMachine(1.0, 1.0)
    assert machine.speed_in_words(speed.Problem((), None, int(3e12)), 1.5) == "2 TB/s, 50 % of a copy"
    assert machine.speed_in_words(speed.Problem((), None, int(7e12), True), 2.0).startswith("3.5 TFLOP/s, 0.5 % of")


def test_a_wrong_result_has_no_speed(monkeypatch):
    on(monkeypatch, 1.0, 0.1)
    with pytest.raises(Mismatch, match=r"out\[0, 0\]: expected"):
        speed.fast_enough(lambda gate_up, out, stream: out.fill(7), PLACE, SMALL, "")


def test_work_is_what_the_docstrings_say():
    ops = CudaOps(simulated=True)
    sizes = {name: PROBLEMS[name](ops, Noise(length=999)).work for name in PROBLEMS}
    assert sizes[PLACE] == 3 * 2 * 5 * 2
    assert sizes["minllm.kernels.kv.ladder.append:append"] == 4 * 16 * 3 * 2
    assert sizes["minllm.kernels.matmul.ladder.naive:matmul_naive"] == 2 * 5**3
    assert sizes["minllm.kernels.attention.ladder.materialized:attention"] == 4 * 2 * 16 * (3 + 4 + 5)
    assert sizes["minllm.kernels.attention.split_kv.split_kv:attention"] == 2 * 2 * 16 * 1 * 16 * 2  # whole blocks
