"""Keep what a GPU computes for small expressions, in which a compiler fuses products and sums: python tools/keep_gpu_answers.py [FILE]

Each expression is a kernel of numba.cuda over the same 250 random arguments and 8 special ones. FILE, by default that of the tests of the
simulator, gets the arguments x, y and z, an array for each expression and kind of number, the expressions by name, and "about": the device
and the versions. Takes half a minute on a GPU; exit code 2 without one.
"""

import linecache
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numba import cuda

DRAWN, COUNT = 1000, 250  # more numbers are drawn than are kept
FILE = Path(__file__).resolve().parent.parent / "tests" / "sim" / "gpu_answers.npz"
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38], [0, 1, 0, 2, 1, 1, 1, 2], [0] * 8
KINDS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
FUSED = {
    "sum": "x * y + z",
    "sum_of_second": "z + x * y",
    "difference": "x * y - z",
    "from": "z - x * y",
    "two_products": "x * y + y * z",
    "difference_of_products": "x * y - y * z",
    "three_squares": "x * x + y * y + z * z",
    "square": "x ** 2 + z",
    "negated": "-(x * y) + z",
    "polynomial": "((x * y + z) * y + x) * y + z",
}
OF_FLOAT32 = {
    "silu": "x / (float32(1) + math.exp(-x))",
    "gelu": "float32(0.5) * x * (float32(1) + math.erf(x * float32(0.70710678)))",
    "rms": "x * libdevice.rsqrtf(x * x + y * y + float32(1e-6))",
    "exp_plus": "math.exp(y) + z",
}
FAST = {
    "divide": "x / y",
    "reciprocal": "float32(1) / x",
    "sin": "math.sin(x)",
    "cos": "math.cos(x)",
    "exp": "math.exp(y)",
    "log": "math.log(abs(x))",
    "sqrt": "math.sqrt(x)",
    "power": "math.pow(abs(x), y)",
    "tanh": "math.tanh(x)",
    "denormal_sum": "x + x",
}


def kernel_of(expression, **options):
    """out[i] = expression of x = xs[i], y = ys[i] and z = zs[i]."""
    source = (
        "import math\nfrom numba import cuda, float32\nfrom numba.cuda import libdevice\n"
        "def kernel(xs, ys, zs, out):\n    i = cuda.grid(1)\n    if i < out.size:\n        x, y, z = xs[i], ys[i], zs[i]\n"
        f"        out[i] = {expression}\n"
    )
    name = f"<kernel of {expression}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    space = {}
    exec(compile(source, name, "exec"), space)
    return cuda.jit(**options)(space["kernel"])


def arguments():
    """x, y and z, float32: random numbers, and then special ones."""
    random = np.random.default_rng(11)
    drawn = random.standard_normal((3, DRAWN)) * [[10], [1], [1]]
    return [np.concatenate([row[:COUNT], special]).astype(np.float32) for row, special in zip(drawn, SPECIAL)]


def answers(expression, kind, **options):
    """What the GPU computes for arguments and result of a kind."""
    with np.errstate(all="ignore"):
        given = [cuda.to_device(row.astype(kind)) for row in arguments()]
    out = cuda.device_array(given[0].size, kind)
    kernel_of(expression, **options)[-(-out.size // 128), 128](*given, out)
    return out.copy_to_host()


def main(file=FILE):
    """Run everything and write the file; returns the exit code."""
    if not cuda.is_available():
        print("this needs a CUDA GPU", file=sys.stderr)
        return 2
    kept = dict(zip("xyz", arguments()))
    for name, expression in FUSED.items():
        kept |= {f"{name}/{kind}": answers(expression, dtype) for kind, dtype in KINDS.items()}
    kept |= {f"{name}/float32": answers(expression, np.float32) for name, expression in OF_FLOAT32.items()}
    kept |= {f"fast/{name}/float32": answers(expression, np.float32, fastmath=True) for name, expression in FAST.items()}
    about = f"{cuda.get_current_device().name}, numba-cuda {version('numba-cuda')}, Python {sys.version.split()[0]}"
    expressions = np.array(list((FUSED | OF_FLOAT32 | {f"fast/{name}": expression for name, expression in FAST.items()}).items()))
    arrays = {name.replace("/", "__"): array for name, array in kept.items()}
    np.savez_compressed(file, about=np.array(about), expressions=expressions, **arrays)
    print(f"{len(kept) - 3} arrays of {about} in {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
