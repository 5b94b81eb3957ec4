"""Where a step's time goes: made-up kernels that overlap, in a step of two layers."""

from types import SimpleNamespace

import pytest

from minllm.bench import step_trace
from minllm.bench.serving.profile.stages import ADVANCE
from minllm.bench.serving.profile.steps import Event
from minllm.bench.step_parts import StepParts

HEAD, LAYER, TAIL = ["embedding_kernel"], ["matmul_kernel", "split_kernel"], ["matmul_head_kernel", "advance_kernel"]
MOVED = [8_000_000, 0], [4_000_000, 0]
ADDED = {"embedding_kernel": 2.0, "matmul_kernel": 5.0, "split_kernel": 3.0, "matmul_head_kernel": 4.0, "advance_kernel": 1.0}


def parts():
    def launches(names):
        return [SimpleNamespace(name=name) for name in names]

    return StepParts(launches(HEAD), [launches(LAYER), launches(LAYER)], launches(TAIL))


def events(steps, slow_layer=0.0, lost=()):
    """Kernels of `steps` steps, each beginning 1 µs before its predecessor ends; slow_layer: more time of the second split."""
    now, found = 100.0, []
    for step in range(steps):
        for i, name in enumerate([*HEAD, *LAYER, *LAYER, *TAIL]):
            added = ADDED[name] + (slow_layer if i == 4 else 0.0)
            if (step, i) not in lost:
                found.append(Event(ADVANCE if name == "advance_kernel" else name, now - 1.0, now + added))
            now += added
    return found


def test_a_kernel_counts_with_what_it_adds_and_layers_are_averaged():
    head, layer, tail = step_trace.kernel_times(events(12, slow_layer=2.0), parts(), MOVED)
    assert [one.added for one in (*head, *layer, *tail)] == pytest.approx([2.0, 5.0, 4.0, 4.0, 1.0])
    assert all(one.early == pytest.approx(1.0) for one in (*head, *layer, *tail))
    assert [one.moved for one in layer] == MOVED[0] and [one.moved for one in tail] == MOVED[1]


def test_a_step_that_lost_a_kernel_is_left_out():
    assert len(step_trace.steps_of_events(events(9), 7)) == 8  # nothing is before the first
    assert len(step_trace.steps_of_events(events(9, lost={(5, 2)}), 7)) == 7


def test_the_account_adds_up():
    text = step_trace.account("a step", step_trace.kernel_times(events(12), parts(), MOVED), 2, copy_tb_s=4.0)
    cells = {line.split(" | ")[0].strip("| *"): [part.strip(" |") for part in line.split(" | ")[1:]] for line in text.splitlines()[4:]}
    assert cells["matmul"] == ["5.0", "1.0", "8.0", "2.0", "3.0"]
    assert cells["a layer"] == ["8.0", "", "8.0", "2.0", "6.0"]
    assert cells["2 layers"] == ["16.0", "", "16.0", "4.0", "12.0"]
    assert cells["the step"] == ["23.0", "", "20.0", "5.0", "18.0"]
