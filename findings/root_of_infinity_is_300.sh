#!/usr/bin/env bash
# onnxruntime 1.32.0 on the CPU, a model in float16.
#
# Input: y = x * x, z = sqrt(y), all of float16, for x = 300 and 0.0001. x * x is beyond float16: infinity in the one, 0 in the other case.
# Expected: y and z are infinity and 0, as NumPy and onnx's own ReferenceEvaluator give; at most the optimizer would make it 300 and 0.0001.
# Seen: z is 300 and 0.0001, with all optimizations off, too. If the model also returns y, one run returns y = infinity and z = 300, which
# contradict each other. Operators without a kernel for float16 get casts around them, and the casts between two of them are taken out, so
# that float32 flows from one to the next. A model that overflows in float16 elsewhere thus passes a check on the CPU.
# A pair of casts that the model itself has, float32 to float16 and back, is kept.
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

NONE, ALL = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
numbers = np.array([300, 1e-4], np.float16)


def model(nodes, kind, *outputs):
    given, *returned = (helper.make_tensor_value_info(name, kind, [2]) for name in ("x", *outputs))
    graph = helper.make_graph([helper.make_node(*parts, **more) for *parts, more in nodes], "graph", [given], returned)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model, level, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [array.tolist() for array in session.run(None, {"x": x})]


root = [("Mul", ["x", "x"], ["y"], {}), ("Sqrt", ["y"], ["z"], {})]
for outputs in (["z"], ["y", "z"]):
    float16 = model(root, TensorProto.FLOAT16, *outputs)
    reference = [array.tolist() for array in ReferenceEvaluator(float16).run(None, {"x": numbers})]
    print(f"returned: {outputs}  reference: {reference}  onnxruntime without optimizations: {run(float16, NONE, numbers)}")
    assert reference == [[np.inf, 0]] * len(outputs)
    for level in (NONE, ALL):
        *y, z = run(float16, level, numbers)
        assert y == [[np.inf, 0]] * len(y) and z == numbers.tolist()
casts = [("Cast", ["x"], ["y"], {"to": TensorProto.FLOAT16}), ("Cast", ["y"], ["z"], {"to": TensorProto.FLOAT})]
kept = run(model(casts, TensorProto.FLOAT, "z"), ALL, np.array([90000, 1e-8], np.float32))
print("casts of the model itself, 90000 and 1e-8:", kept)
assert kept == [[np.inf, 0]]
PYTHON
