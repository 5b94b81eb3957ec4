#!/usr/bin/env bash
# onnxruntime 1.32.0 on the CPU, and the reference evaluator of onnx 1.23.2: Cast of float32 to int4, uint4, int8 and int32.
#
# Input: 0.5, 1.5, 1.7, 2.5 and their negatives, cast to each type and back.
# Expected: the fraction is cut off, as casts to integers do in ONNX: 0, 1, 1, 2. QuantizeLinear is the operator that rounds, to even
# numbers.
# Seen: int8, int32 and the reference's int4 are cut. In onnxruntime int4 and uint4 are rounded, with halves away from zero: 1, 2, 2, 3.
# Of 2.5 a Cast to int8 gives 2, one to int4 gives 3, and QuantizeLinear to int4, with a scale of 1, gives 2 again: of one library three
# rules for four bits and eight. -0.5 becomes -1 in int4, and in uint4 15, the largest number, where 0 is right. A Cast to int8 before that
# to int4 gives what the reference gives.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = np.array([0.5, 1.5, 1.7, 2.5, -0.5, -1.5, -1.7, -2.5], np.float32)


def results(nodes, constants=()):
    """What onnxruntime and the reference compute."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(x)]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "casts", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [runner.run(None, {"x": x})[0].tolist() for runner in (session, ReferenceEvaluator(model))]


def cast(*kinds):
    names = ["x", *(f"x{number}" for number in range(len(kinds))), "y"]
    pairs = zip(names[:-1], names[1:], [*kinds, TensorProto.FLOAT], strict=True)
    return [helper.make_node("Cast", [source], [target], to=kind) for source, target, kind in pairs]


cut, rounded = [0, 1, 1, 2, 0, -1, -1, -2], [1, 2, 2, 3, -1, -2, -2, -3]
for name, kinds, seen, reference in (
    ("int8", [TensorProto.INT8], cut, cut),
    ("int32", [TensorProto.INT32], cut, cut),
    ("int4", [TensorProto.INT4], rounded, cut),
    ("uint4", [TensorProto.UINT4], [value % 16 for value in rounded], [value % 16 for value in cut]),
    ("int8, then int4", [TensorProto.INT8, TensorProto.INT4], cut, cut),
):
    found = results(cast(*kinds))
    print(f"Cast of {x.tolist()} to {name}: onnxruntime {found[0]}, reference {found[1]}")
    assert found == [seen, reference]

scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0])
zero = helper.make_tensor("zero", TensorProto.INT4, [], [0])
nodes = [
    helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
]
found = results(nodes, [scale, zero])
print(f"QuantizeLinear to int4: onnxruntime {found[0]}, reference {found[1]}")
assert found == [[0, 2, 2, 2, 0, -2, -2, -2]] * 2
PYTHON
