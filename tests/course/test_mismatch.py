"""What is said of a wrong array: the mistake where a suspect fits, else what stands out in the numbers."""

import numpy as np
import pytest

from minllm.course.checks.mismatch import Mismatch, expect
from minllm.sim import unwritten

RIGHT = np.random.default_rng(0).standard_normal((3, 4, 4))
AXES = ("token", "head", "dim")


def told(got, expected=RIGHT, suspects=()):
    """What `expect` says, or "" if it is content."""
    try:
        expect("out", got, expected, AXES, suspects)
    except Mismatch as error:
        return str(error)
    return ""


def changed(where, value):
    """The right array with other numbers in one place."""
    array = RIGHT.copy()
    array[where] = value
    return array


WRONG = {
    "a factor": (RIGHT * 0.25, "every element is 0.25 times"),
    "a sign": (-RIGHT, "the other sign"),
    "an offset": (RIGHT + 3, "every element is 3 too large"),
    "zeros": (changed(np.s_[1:], 0), "every wrong element is 0"),
    "a constant": (changed(np.s_[1:], 7), "every wrong element is 7"),
    "one place further": (np.roll(RIGHT, 1, axis=1), "head i has the numbers of head i - 1"),
    "one place back": (np.roll(RIGHT, -1, axis=2), "dim i has the numbers of dim i + 1"),
    "backwards": (RIGHT[::-1], "the order along token is reversed"),
    "transposed": (RIGHT.swapaxes(1, 2), "head and dim are exchanged"),
    "an index that is not used": (np.broadcast_to(RIGHT[:1], RIGHT.shape), "every token has the same numbers"),
    "one row": (changed(np.s_[:, 3], RIGHT[:, 3] ** 2), "all that is wrong belongs to one head, the last of 4"),
    "from one row on": (changed(np.s_[:, :, 2:], RIGHT[:, :, 2:] ** 2), "dim 0 to 1 are right; from dim 2 on all is wrong"),
    "up to one row": (changed(np.s_[:, :, :2], RIGHT[:, :, :2] ** 2), "dim 0 to 1 are wrong; from dim 2 on all is right"),
}


@pytest.mark.parametrize("got, says", WRONG.values(), ids=WRONG)
def test_what_stands_out(got, says):
    assert says in told(got), told(got)


def test_right_numbers_and_rounded_ones_pass_and_nothing_is_made_up():
    assert told(RIGHT) == told(RIGHT * (1 + 1e-12)) == ""
    noise = np.random.default_rng(1).standard_normal(RIGHT.shape)
    assert "What stands out" not in told(noise) and "Likely cause" not in told(noise)


def test_a_suspect_comes_first():
    said = told(-RIGHT, suspects=[("nothing of the sort.", RIGHT * 2), ("the sign is wrong.", -RIGHT)])
    assert "Likely cause: the sign is wrong." in said and "stands out" not in said


def test_elements_that_nobody_wrote_are_counted():
    out = unwritten((2, 3), np.float32)
    out[0, 0] = 1
    with pytest.raises(Mismatch, match="5 of 6 elements were never written"):
        expect("out", out, np.zeros((2, 3)))
