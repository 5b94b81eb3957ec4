"""What runs on a machine for which nothing of CUDA can be installed, as on macOS: an environment without numba-cuda and any cuda package.

The environment's packages are links to those of this one, so that nothing is downloaded.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_CUDA = re.compile(r"_?(numba_)?cuda|_numba_cuda_redirector|nvidia|torch|triton", re.IGNORECASE)
KERNEL_AND_EXERCISES = """
import importlib.util

import numpy as np

assert not [name for name in ("cuda", "numba_cuda", "torch") if importlib.util.find_spec(name)]

from minllm.course.checks.doors import check_file
from minllm.course.exercises import find
from minllm.kernels.matmul import VARIANTS
from minllm.runtime.device import is_available

assert not is_available()
rng = np.random.default_rng(0)
x, weight = (rng.standard_normal(shape, np.float32).astype(np.float16) for shape in ((16, 64), (32, 64)))
out = np.full((16, 32), np.nan, np.float32)
VARIANTS["tensor_core"](x, weight, out)
assert np.allclose(out, x.astype(np.float32) @ weight.astype(np.float32).T, atol=1e-3)
for name in ("activation.silu", "normalization.rms_norm", "kv.append"):
    report = check_file(find(name).path, name)
    assert report.passed, report
"""

# Ranks are processes, which are spawned there: they import this file anew.
ENGINES = """
from minllm import LLM, SamplingParams

if __name__ == "__main__":
    params = SamplingParams(temperature=0, max_tokens=4)
    options = dict(device="cpu", dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 20)
    found = []
    for option in ({}, {"speculative_config": {"num_speculative_tokens": 2}}, {"pipeline_parallel_size": 2}, {"quantization": "int4"}):
        with LLM(**options, **option) as llm:
            found.append(llm.generate(["class Point:"], params)[0].outputs[0].token_ids)
    assert found[0] == found[1] == found[2] and len(found[3]) == 4, found
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that has every package of this one but those of CUDA."""
    environment = tmp_path_factory.mktemp("without_cuda")
    venv.create(environment, with_pip=False, symlinks=os.name != "nt")
    scheme = dict(base=str(environment), platbase=str(environment))
    packages = Path(sysconfig.get_path("purelib", vars=scheme))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not OF_CUDA.match(path.name) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path, target_is_directory=path.is_dir())
    return Path(sysconfig.get_path("scripts", vars=scheme)) / Path(sys.executable).name


def run(python, *arguments, stdin=""):
    """The output of a run in that environment, which must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run([python, *arguments], cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo(python):
    text = run(python, "-m", "minllm", "generate", "-", "--echo", "--max-tokens", "8", stdin="class Point:\n    def __init__(self):\n")
    assert text.startswith("class Point:")


def test_a_simulated_tensor_core_kernel_and_three_exercises(python):
    run(python, "-c", KERNEL_AND_EXERCISES)


def test_speculation_ranks_and_quantised_weights(python, tmp_path):
    script = tmp_path / "engines.py"
    script.write_text(ENGINES, encoding="utf-8")
    run(python, script)


@pytest.mark.parametrize("lesson", ["02_your_first_kernel", "03_scaled_dot_product_attention"])
def test_lessons(python, lesson):
    run(python, f"lessons/{lesson}.py")


def test_tests_of_the_compiler_are_skipped_with_a_reason(python):
    files = ("tests/sim/test_numba_types.py", "tests/sim/test_array_forms.py")
    said = run(python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *files)
    assert "numba-cuda is not installed" in said and " passed" in said and "failed" not in said
