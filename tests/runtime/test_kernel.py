"""The decorator `kernel`: what its options are and what they determine."""

from minllm.runtime.kernel import kernel


def double(x):
    x[0] *= 2


def test_options_of_a_launch_do_not_change_the_machine_code():
    plain, other = kernel(double), kernel(dependent_launch=True, carveout=50)(double)
    assert plain.options == other.options and (plain.dependent_launch, plain.carveout) == (False, None)
    assert (other.dependent_launch, other.carveout) == (True, 50)


def test_a_kernel_without_contraction_is_launched_in_the_same_way():
    given = kernel(dependent_launch=True, carveout=0)(double)
    found = given.without_contraction()
    assert (found.dependent_launch, found.carveout, found.options["contract"]) == (True, 0, False)
