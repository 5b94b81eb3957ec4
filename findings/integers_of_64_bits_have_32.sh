#!/usr/bin/env bash
# openvino 2026.4.1 on the CPU, models of one operator on integers, with INFERENCE_PRECISION_HINT f32.
#
# Input: parameters of type i64 and i32. 2**33, compared with 0 and with itself, as a parameter and as a constant; 2**40 + 1 and 2**31 * 2
# in i64; 16777217 and 16777216 (2**24) in i32, of which the sum, the largest and the order are asked for.
# Expected: integers are exact within the range of the type that the model states and that the result has.
# Seen: i64 is computed in 32 bits and returned as i64. 2**40 + 1 is 1, 2**31 * 2 is 0. As a parameter 2**33 equals 0: its upper half
# is cut off; as a constant it does not even equal itself, because constants are limited to 2**31 - 1 instead. i32 goes through float32 in
# Greater, ReduceSum and ReduceMax: 16777217 is not greater than 16777216, and the largest of both is 16777216; Add and Multiply are exact.
# No message says so. A hash, a seed or an offset in bytes that a model computes is lost; ids of tokens are small enough.
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


def run(operator, *arrays):
    """The numbers, and the type, that a model of one operator returns for these arrays."""
    parameters = [operators.parameter(array.shape, openvino.Type(array.dtype)) for array in arrays]
    model = openvino.Model([operator(*parameters)], parameters)
    result = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(list(arrays))[0]
    return np.ravel(result).tolist(), str(result.dtype)


def over_all(operator):
    return lambda x: operator(x, operators.constant(np.array([0])), False)


def i64(*numbers):
    return np.array(numbers, np.int64)


def i32(*numbers):
    return np.array(numbers, np.int32)


FIRST = 2**24
CASES = (
    ("2**33 == 0", run(operators.equal, i64(2**33), i64(0)), ([True], "bool")),
    ("2**33 == constant 2**33", run(lambda x: operators.equal(x, operators.constant(i64(2**33))), i64(2**33)), ([False], "bool")),
    ("2**40 + 1", run(operators.add, i64(2**40), i64(1)), ([1], "int64")),
    ("2**31 * 2", run(operators.multiply, i64(2**31), i64(2)), ([0], "int64")),
    ("sum of i32", run(over_all(operators.reduce_sum), i32(FIRST, 1)), ([FIRST], "int32")),
    ("largest of i32", run(over_all(operators.reduce_max), i32(FIRST + 1, FIRST)), ([FIRST], "int32")),
    ("16777217 > 16777216", run(operators.greater, i32(FIRST + 1), i32(FIRST)), ([False], "bool")),
    ("16777216 + 1 in i32", run(operators.add, i32(FIRST), i32(1)), ([FIRST + 1], "int32")),
    ("16777217 * 3 in i32", run(operators.multiply, i32(FIRST + 1), i32(3)), ([3 * FIRST + 3], "int32")),
)
for name, found, expected in CASES:
    print(name, "gives", found)
for name, found, expected in CASES:
    assert found == expected, name
PYTHON
