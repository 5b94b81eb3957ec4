#!/usr/bin/env bash
# onnxruntime 1.32.0 on the CPU of x86-64, Sigmoid of float32.
#
# Input: numbers from -8 to -20, and the models log(sigmoid(x)), as a log probability or a log decay of a gate is exported.
# Expected: sigmoid(x) = 1 / (1 + exp(-x)) to the precision of float32, which holds exp(-20) = 2.06e-9 with seven digits; so do
# onnx's own ReferenceEvaluator and onnxruntime's Exp. The log of it is x, nearly.
# Seen: at and below -18 it is 0, and the log minus infinity. Above, steps of 3e-8 remain of it: at -16 it is 47% too small, at -17 116%
# too large, so that sigmoid(-17) is larger than sigmoid(-16). At -10 three digits are right. At +10 and in absolute numbers all is well,
# which is what a comparison with a tolerance of 1e-6 looks at. Softplus is exact: -softplus(-x) gives the log.
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


def run(x, *operators):
    """(onnxruntime's numbers, those of onnx's reference) for a chain of operators on x."""
    nodes = [helper.make_node(operator, [f"x{place}"], [f"x{place + 1}"]) for place, operator in enumerate(operators)]
    inputs = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, x.shape)]
    output = helper.make_tensor_value_info(f"x{len(operators)}", TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, "graph", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x0": x})[0], ReferenceEvaluator(model).run(None, {"x0": x})[0]


x = np.array([-8, -10, -12, -14, -16, -17, -18, -20], np.float32)
true = 1 / (1 + np.exp(-x.astype(np.float64)))
found, reference = run(x, "Sigmoid")
log, reference_log = run(x, "Sigmoid", "Log")
for row in zip(x, true, reference, found, reference_log, log, strict=True):
    print("x {:.0f}: true {:.4g}, reference {:.4g}, onnxruntime {:.4g}; log {:.5f}, {:.5f}".format(*row))
errors = found / true - 1
assert np.abs(reference / true - 1).max() < 1e-6 and np.abs(run(x, "Exp")[0] / np.exp(x.astype(np.float64)) - 1).max() < 1e-6
assert 1e-4 < abs(errors[1]) < 1e-3 and errors[4] < -0.3 and errors[5] > 0.5 and found[5] > found[4]
assert (found[-2:] == 0).all() and (log[-2:] == -np.inf).all() and np.abs(found - true).max() < 1e-6
assert np.abs(run(-x, "Softplus", "Neg")[0] - np.log(true)).max() < 1e-5
PYTHON
