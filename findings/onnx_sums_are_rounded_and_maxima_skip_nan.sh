#!/usr/bin/env bash
# onnxruntime 1.32.0, ReduceSum, ReduceProd and ReduceMax on the CPU.
#
# Input: models of one operator. Sums and products of int64 and int32; the largest of float32 numbers among which one is NaN.
# Expected: integers are added as integers: exact, and wrapped beyond their range, as onnx's own ReferenceEvaluator and NumPy do. NaN is the
# largest number wherever it stands, as in NumPy and in torch, or nowhere.
# Seen: an int64 sum goes through float64: 2**53 + 1 and 1 give 2**53, and sums and products beyond the range become the type's largest
# number. MatMul of the same numbers is exact. ReduceMax is NaN if NaN comes first along the axis, and ignores it anywhere else; so do
# ReduceMin and ArgMax. Max of two tensors is NaN in both orders.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def run(operator, *arrays):
    """(onnxruntime's number, that of onnx's reference) for one operator on these arrays."""
    kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    names = [f"x{place}" for place in range(len(arrays))]
    inputs = [helper.make_tensor_value_info(name, kind, array.shape) for name, array in zip(names, arrays, strict=True)]
    output = helper.make_tensor_value_info("y", TensorProto.INT64 if operator == "ArgMax" else kind, None)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"])], "graph", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    given = dict(zip(names, arrays, strict=True))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = [session.run(None, given)[0], ReferenceEvaluator(model).run(None, given)[0]]
    return tuple(np.ravel(array)[0].item() for array in found)


def numbers(*values, dtype=np.int64):
    return np.array(values, dtype)


one, beyond = numbers(1, 1), numbers(2**53 + 1, 1)
for name, found, expected in (
    ("ReduceSum int64", run("ReduceSum", beyond), (2**53, 2**53 + 2)),
    ("MatMul int64", run("MatMul", beyond, one), (2**53 + 2, 2**53 + 2)),
    ("ReduceSum int32", run("ReduceSum", numbers(2**31 - 1, 1, dtype=np.int32)), (2**31 - 1, -(2**31))),
    ("ReduceProd int32", run("ReduceProd", numbers(65537, 65539, dtype=np.int32)), (2**31 - 1, 65537 * 65539 - 2**32)),
):
    print(name, "onnxruntime", found[0], "reference", found[1])
    assert found == expected
largest = []
for place in range(4):
    x = np.array([1, 2, 3, 4], np.float32)
    x[place] = np.nan
    largest.append((run("ReduceMax", x)[0], run("ReduceMax", x)[1], run("ArgMax", x)[0]))
    print("ReduceMax of", x, "onnxruntime", largest[-1][0], "reference", largest[-1][1], "ArgMax", largest[-1][2])
assert [np.isnan(ours) for ours, _, _ in largest] == [True, False, False, False] and all(np.isnan(reference) for _, reference, _ in largest)
assert [place for *_, place in largest] == [0, 3, 3, 2]
one, nan = np.array([1, np.nan], np.float32), np.array([np.nan, 1], np.float32)
assert np.isnan(run("Max", one, nan)[0]) and np.isnan(run("Max", nan, one)[0])
PYTHON
