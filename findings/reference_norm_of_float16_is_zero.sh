#!/usr/bin/env bash
# onnx 1.23.2, ReferenceEvaluator, which onnx offers to check backends with: LayerNormalization and RMSNormalization of float16.
#
# Input: [300, -300, 300, 100] in float16, as the residual stream of a model easily is, with a scale of 1.
# Expected: numbers about 1, as onnxruntime 1.32.0 gives. Both operators have stash_type=1 by default: mean and variance are computed in
# float32, and the evaluator raises an error for other values of it.
# Seen: [0, 0, 0, 0] for both. It checks stash_type and then squares in the type of the input, where 90000 is infinity, and 1 / infinity is
# 0. Numbers up to 255 are right, so that random test data of about 1 show nothing. GroupNormalization is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def normalized(operator, numbers):
    """By the reference, and by onnxruntime."""
    inputs = {"x": np.array([numbers], np.float16), "scale": np.ones(len(numbers), np.float16)}
    if operator == "GroupNormalization":
        inputs["bias"] = np.zeros(len(numbers), np.float16)
    attributes = {"num_groups": 1} if operator == "GroupNormalization" else {}
    typed = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, array.shape) for name, array in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph([helper.make_node(operator, list(inputs), ["y"], **attributes)], "norm", typed, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return ReferenceEvaluator(model).run(None, inputs)[0][0], session.run(None, inputs)[0][0]


for operator in ("LayerNormalization", "RMSNormalization", "GroupNormalization"):
    for numbers in ([3, -3, 3, 1], [300, -300, 300, 100]):
        reference, runtime = normalized(operator, numbers)
        print(operator, numbers, "reference:", reference.tolist(), "onnxruntime:", runtime.tolist())
        if numbers[0] == 300 and operator != "GroupNormalization":
            assert not reference.any() and abs(runtime).max() > 1
        else:
            assert np.allclose(reference, runtime, atol=0.01)
PYTHON
