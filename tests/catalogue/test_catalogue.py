"""The catalogue itself: no kernel is missing, a launch is the same on all its targets, and its parts agree."""

import pytest

from minllm import catalogue
from minllm.catalogue import STAGES
from minllm.runtime.dry_run import types_key
from tests.compile.kernels_in_sources import kernel_names


@pytest.mark.parametrize("stage", STAGES)
def test_every_kernel_of_a_stage_is_compiled_and_run(stage):
    kernels = {name for _, name in kernel_names((stage,))}
    assert kernels == {one.kernel.__name__ for one in catalogue.stage(stage).compiled()}
    assert kernels <= {kernel for launch, names in catalogue.one_per_kernel().items() for kernel in names}


@pytest.mark.parametrize("stage", STAGES)
def test_a_launch_is_the_same_on_all_its_targets(stage):
    for one in catalogue.stage(stage).compiled():
        found = {str(described(one.recorded_on(target))) for target in one.targets}
        assert len(found) == 1, f"{one.name}: {found}"


def described(recorded):
    """What decides on the machine code of a recorded launch, and on whether it fits."""
    launch = recorded.launch
    return id(launch.kernel), list(types_key(recorded.arguments)), launch.block, launch.shared_bytes
