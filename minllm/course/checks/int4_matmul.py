"""The ladder for the dequantising GEMV: x [M, K] times a weight of 4-bit codes in groups of inputs."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.quantization.int4 import MIDDLE, Int4Weight
from minllm.kernels.quantization.reference import NIBBLE_ORDER
from minllm.sim import unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def random_weight(n, k, group_size=32, zeros=False, minimums=False):
    """An Int4Weight [n, k] with random codes and scales, and if requested random zero points or minimums."""
    random = np.random.default_rng(k)
    groups = (k // group_size, n)
    scales = random.uniform(0.5, 4, groups).astype(np.float16)
    return Int4Weight(
        random.integers(0, 256, (n, k // 2), np.uint8), scales,
        random.integers(4, 12, groups).astype(np.uint8) if zeros else None,
        -8 * scales if minimums else None,
    )  # fmt: skip


def matrix_of(weight, order=NIBBLE_ORDER, zero_error=0.0, group_of=None, taken=(0, 1)):
    """The matrix [n, k] that a weight represents, float64. The arguments model mistakes in unpacking it.

    order: the input of each nibble of a word. zero_error: added to every zero point. group_of: group of each input [k]; None means
    input // group_size. taken: which bits are read as low and high nibble: 0 the lower four bits, 1 the upper four, None neither.
    """
    nibbles = (weight.codes & 15, weight.codes >> 4)
    k, groups, words = 2 * weight.codes.shape[1], weight.scales.shape[0], np.arange(weight.codes.shape[1]) // 4
    group = np.arange(k) // (k // groups) if group_of is None else group_of
    scale = weight.scales.astype(np.float64)[group].T  # [n, k]
    zero = MIDDLE if weight.zeros is None else weight.zeros.astype(np.float64)[group].T
    minimum = None if weight.minimums is None else weight.minimums.astype(np.float64)[group].T
    matrix = np.zeros((len(weight.codes), k))
    for half, source in enumerate(taken):
        if source is None:
            continue
        inputs = 8 * words + np.array(order[half::2])[np.arange(len(words)) % 4]
        placed = np.zeros_like(matrix)
        placed[:, inputs] = nibbles[source]
        numbers = placed * scale + minimum if minimum is not None else (placed - zero - zero_error) * scale
        matrix[:, inputs] += numbers[:, inputs]
    return matrix


def misread(weight):
    """The matrices that common mistakes would read from a weight, as a list of (mistake, [n, k])."""
    k, groups = 2 * weight.codes.shape[1], weight.scales.shape[0]
    size = k // groups
    low_inputs = np.arange(k) - np.where(np.arange(k) % 4 < 2, 0, 2)
    found = [
        ("the high nibble holds the input 2 further than the low one, and not its neighbour.", matrix_of(weight, (0, 1, 4, 5, 1, 2, 5, 6))),
        ("the nibbles of a word were taken as inputs 0, 1, 2, ... in turn; low nibbles hold inputs 0, 4, 1, 5, high ones 2 more.",
         matrix_of(weight, range(8))),
        ("the bytes of a word hold the inputs 0, 4, 1, 5 in their low nibbles: 4 for an odd byte, 1 for the upper two.",
         matrix_of(weight, (0, 2, 1, 3, 4, 6, 5, 7))),
        ("the low nibble is code & 15 and the high one code >> 4: they are exchanged.", matrix_of(weight, taken=(1, 0))),
        ("the high nibble was read for both inputs: the low one is code & 15.", matrix_of(weight, taken=(1, 1))),
        ("the low nibble was read for both inputs: the high one is code >> 4.", matrix_of(weight, taken=(0, 0))),
        ("only the low nibbles were added: a byte holds two codes.", matrix_of(weight, taken=(0, None))),
        ("only the high nibbles were added: a byte holds two codes.", matrix_of(weight, taken=(None, 1))),
        ("the group of an input is k // group_size, and its scale scales[group, n]: here all inputs took the first group's.",
         matrix_of(weight, group_of=np.zeros(k, int))),
        ("groups lie side by side along the inputs: input k belongs to group k // group_size, and not to k % groups.",
         matrix_of(weight, group_of=low_inputs % groups)),
        ("the group was taken from the byte's number; a byte holds two inputs, so divide k.",
         matrix_of(weight, group_of=np.arange(k) // 8 * 4 // size)),
    ]  # fmt: skip
    if weight.minimums is None:
        found += [
            ("the zero point, 8 where groups have none of their own, was not subtracted.", matrix_of(weight, zero_error=-MIDDLE)),
            ("the zero point is off by one: the code that equals it stands for 0.", matrix_of(weight, zero_error=-1)),
            ("the zero point is off by one: the code that equals it stands for 0.", matrix_of(weight, zero_error=1)),
        ]
    else:
        found.append(("the group's minimum was not added.", matrix_of(weight._replace(minimums=0 * weight.minimums))))
    if weight.zeros is not None:
        found += [
            ("the group has a zero point of its own, zero_point(zeros, minimums, group, n).", matrix_of(weight._replace(zeros=None))),
            ("the zero point was not subtracted from the code.", matrix_of(weight._replace(zeros=0 * weight.zeros))),
        ]
    return found


def multiply(matmul, weight, m=1, bias=None, dtype=np.float32, x=None):
    """Run the reader's GEMV into an unwritten array, and compare with the exact result and with suspects."""
    n, k = weight.codes.shape[0], 2 * weight.codes.shape[1]
    x = np.random.default_rng(1).standard_normal((m, k)).astype(dtype) if x is None else x
    out = unwritten((m, n), np.float32)
    matmul(x, weight, out, bias)
    wide, extra = x.astype(np.float64), 0 if bias is None else bias.astype(np.float64)
    right = matrix_of(weight)
    suspects = [(mistake, wide @ matrix.T + extra) for mistake, matrix in misread(weight)]
    suspects.append(("every row of x is multiplied: its element is x[m, k].", np.repeat(wide[:1], m, axis=0) @ right.T + extra))
    expect("out", out, wide @ right.T + extra, ("token", "feature"), suspects)


def by_hand(matmul):
    """One byte by hand: codes 9 and 11 with scale 2 give 2 for input 0 and 6 for input 2; all other weights are 0."""
    weight = Int4Weight(np.uint8([[0xB9, 0x88, 0x88, 0x88]]), np.float16([[2]]))
    multiply(matmul, weight, x=np.float32([[1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7]]))


def of(n, k, m=1, **options):
    """The check of a rung with a random weight [n, k] and m rows of x."""
    return lambda matmul: multiply(matmul, random_weight(n, k, **options), m)


def several_rows(matmul):
    """Three rows, with a bias."""
    multiply(matmul, random_weight(5, 320, zeros=True), m=3, bias=np.float32([1, -2, 3, -4, 5]))


def budget(matmul):
    """The byte budget: each code is read once, and a scale once per byte of codes."""
    weight, x, out = random_weight(3, 320), np.ones((1, 320), np.float32), unwritten((1, 3), np.float32)
    advice = "each lane takes its own bytes of codes: at = lane, lane + 32, ... and reads each once, into a variable."
    read = dict(codes=weight.codes.nbytes, x=3 * x.nbytes, scales=2 * weight.codes.size)
    expect_bytes(functools.partial(matmul, x, weight, out), read, dict(out=out.nbytes), advice)


EXERCISES = (
    Exercise(
        name="matmul.int4",
        lesson=18,
        title="a GEMV that unpacks 4-bit weights in registers",
        module="minllm.kernels.matmul.ladder.int4_naive",
        entry="int4_naive",
        stage="int4_matmul",
        most_rows=8,
        engine_options="--quantization int4",
        task="A lane has byte number `at` of its row. Four bytes, a word, hold 8 inputs:\n\n"
        "    low nibbles 0 4 1 5, high nibbles 2 6 3 7\n\n"
        "Read codes[n, at] once and find k, the low nibble's input; the high one's is k + 2, in the same group. Add x[m, k] * w to total "
        "for each, w = (code - zero) * scale + minimum, with scales[group, n], zero_point(zeros, minimums, group, n) and "
        "minimum_of(minimums, group, n).",
        hints=(
            "The word is at >> 2 and the byte of the word at & 3. A word begins at input 8 * word.",
            "The low nibbles hold the inputs 0, 4, 1, 5 of the word: 4 for an odd byte, and 1 for the upper two.",
            "code = int32(codes[n, at]); code & 15 is the low nibble and code >> 4 the high one. float32(...) makes a float of either.",
        ),
        rungs=(
            Rung("one byte by hand", "a byte is two codes, and a code less the middle, 8, times the scale is a number.", by_hand),
            Rung("the order of nibbles", "the eight codes of a word are not stored in their inputs' order.", of(1, 8, group_size=8)),
            Rung("several words", "byte `at` belongs to word at // 4.", of(2, 32)),
            Rung("a scale for each group", "inputs 32 to 63 have another scale than 0 to 31.", of(3, 320)),
            Rung("zero points", "a group may have its own zero point.", of(3, 128, zeros=True)),
            Rung("minimums", "or a minimum, which is added after the scale.", of(3, 128, minimums=True)),
            Rung("several tokens and a bias", "each token has its own row of x, and features have a bias.", several_rows),
            Rung("bfloat16", "activations are 16 bits wide, and sums 32.",
                 lambda matmul: multiply(matmul, random_weight(2, 1024, group_size=128), dtype=BFLOAT16)),
            Rung("byte budget", "half a byte per weight is what the format is for.", budget),
            speed.rung("minllm.kernels.matmul.ladder.int4_naive:int4_naive", speed_problems.int4,
                       "codes are read more than once, or a literal 0.0 made the sum a float64."),
        ),
    ),
)  # fmt: skip
