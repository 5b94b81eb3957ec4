"""The copies and the debugger of lesson 2."""

import numpy as np
import pytest

from minllm.course import copies, typed_debugger
from minllm.sim import unwritten


@pytest.mark.parametrize("shape", [(1, 1), (3, 129), (129, 3), (5, 128)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_both_copies_copy(shape, by_columns):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = unwritten(shape, np.float32)
    copies.copy(x, out, by_columns)
    assert np.array_equal(out, x)


def test_down_a_column_eight_times_the_bytes_move():
    x = np.ones((64, 64), np.float32)
    rows = copies.copy_by_rows.trace[(64, 1), 64](x, np.empty_like(x)).total
    columns = copies.copy_by_columns.trace[(64, 1), 64](x, np.empty_like(x)).total
    assert rows.bytes == columns.bytes == rows.sector_bytes == 2 * x.nbytes
    assert columns.sector_bytes == 8 * rows.sector_bytes


def test_the_debuggers_commands_are_shown_with_their_answers(capsys):
    answer = 41
    typed_debugger("p answer + 1", "continue").set_trace()
    assert answer == 41
    shown = capsys.readouterr().out
    assert "(Pdb) p answer + 1\n42\n(Pdb) continue\n" in shown
