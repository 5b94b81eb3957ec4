"""Negative indices that a kernel computes: `x[i - 1]` in the first thread is the last element.

Numba compiles a negative index of a signed type as one that counts from the end, once, so `x[-1]` is right on a GPU and here. An index that
becomes negative is nearly always an edge that was forgotten: a GPU reads a wrong element, and nobody notices. So under this detector only
an index of constants may be negative.
"""

import ast
import linecache
import sys

from minllm.sim.arrays import fail
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.monitor import Monitor
from minllm.sim.place import cached_by_code, kernel_frame
from minllm.sim.typing.source import functions_of, place_of


class NegativeIndices(Monitor):
    """Raises SimulationError at a negative index that is no constant."""

    def index(self, thread, array, index):
        positions = index if type(index) is tuple else (index,)
        for axis, (position, extent) in enumerate(zip(positions, array.shape)):
            if isinstance(position, int) and -extent <= position < 0:
                frame = kernel_frame(sys._getframe(1))
                if axis not in constant_axes(frame.f_code, frame.f_lasti) and not waived_frame("negative", frame):
                    what = f"index [{', '.join(map(str, positions))}] into the {array} of shape {array.shape} is negative"
                    where = f"element {position + extent}{f' of axis {axis}' if array.ndim > 1 else ''}"
                    fail(f"{what}: a GPU counts it from the end, so it accesses {where}")


@cached_by_code
def constant_axes(code, position):
    """The axes that the indexing at byte `position` of a kernel's code indexes by constants."""
    lines = list(code.co_positions())[position // 2]
    filename = code.co_filename
    tree, _ = functions_of("".join(linecache.getlines(filename)), filename).get(place_of(code), (None, None))
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Subscript, ast.Call)) and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == lines:
            index = node.slice if isinstance(node, ast.Subscript) else node.args[1] if len(node.args) > 1 else node
            axes = index.elts if isinstance(index, ast.Tuple) else [index]
            return {axis for axis, one in enumerate(axes) if is_constant(one, code)}
    return set()


def is_constant(node, code):
    """Whether an expression has no call and no local variable."""
    parts = list(ast.walk(node))
    local = {*code.co_varnames, *code.co_cellvars}
    return not any(isinstance(one, ast.Call) or (isinstance(one, ast.Name) and one.id in local) for one in parts)
