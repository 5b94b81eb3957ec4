#!/usr/bin/env bash
# openvino 2026.4.1 on the CPU of x86-64, float32 models of one operator, with INFERENCE_PRECISION_HINT f32.
#
# Input: numbers among which one is NaN, for Exp, Relu, Clamp, Maximum, ReduceMax and Softmax; and Softplus from -14 to -20, as a step size
# of a state space model is computed.
# Expected: exp(NaN) is NaN, and so are the other results, as in torch; of a row with NaN every probability is. Softplus(x) =
# log(1 + exp(x)) is positive, and nearly exp(x) for these numbers.
# Seen: exp(NaN) is infinity. Relu, Clamp, Maximum and ReduceMax lose the NaN. Softmax gives 0, NaN, 0, 0 (with SSE4.1 alone two of four are
# NaN): most of the row looks like probabilities. Abs and Sign keep NaN.
# Softplus(-16) is 9.5e-7, eight times too large, and Softplus(-18) is negative, so that its log is NaN.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openvino==2026.4.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import openvino
import openvino.opset13 as operators

core = openvino.Core()


def run(operator, numbers):
    x = np.array([numbers], np.float32)
    parameter = operators.parameter(x.shape, openvino.Type.f32)
    model = openvino.Model([operator(parameter)], [parameter])
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0].ravel()


nan, inf = np.nan, np.inf
NUMBERS = [1, nan, 3, 2]
zeros = np.zeros((1, 4), np.float32)
CASES = {
    "Exp": (operators.exp, [np.e, inf, np.e**3, np.e**2]),
    "Relu": (operators.relu, [1, 0, 3, 2]),
    "Clamp to [0, 2]": (lambda x: operators.clamp(x, 0, 2), [1, 0, 2, 2]),
    "Maximum with 0": (lambda x: operators.maximum(x, operators.constant(zeros)), [1, 0, 3, 2]),
    "ReduceMax": (lambda x: operators.reduce_max(x, operators.constant(np.array([1])), False), [3]),
    "Abs": (operators.abs, NUMBERS),
    "Sign": (operators.sign, [1, nan, 1, 1]),
}
print("x:", NUMBERS)
found = {name: run(operator, NUMBERS) for name, (operator, _) in CASES.items()}
for name, (_, expected) in CASES.items():
    print(f"{name}: {found[name]}")
for name, (_, expected) in CASES.items():
    assert np.allclose(found[name], expected, rtol=1e-5, equal_nan=True), name

softmax = run(lambda x: operators.softmax(x, 1), NUMBERS)
print("Softmax:", softmax)
assert np.isnan(softmax[1]) and softmax[0] == softmax[3] == 0

x = np.array([-14, -16, -18, -20], np.float64)
softplus = run(operators.softplus, x)
print("Softplus of", x, "is", softplus, "instead of", np.log1p(np.exp(x)))
assert (abs(softplus / np.exp(x) - 1)[1:] > 1).all()
PYTHON
