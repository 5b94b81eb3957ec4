"""`minllm race` on a GPU: templates and a function that no graph captures, against all rivals, at small sizes."""

import numpy as np
import pytest
from numba import cuda

from minllm.course.race import timed
from minllm.course.race.command import CONTESTS, TEMPLATES

pytestmark = pytest.mark.alone
SIZES = {"matmul": (256, 192, 320), "softmax": (300, 1000), "decode_attention": (3, 500, 8, 2, 128)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CONTESTS)
def test_a_template_races_all_rivals_that_take_its_dtype(name, dtype):
    contest, dtype = CONTESTS[name], np.dtype(dtype)
    times = timed.measure(TEMPLATES / f"{name}.py", contest, SIZES[name], dtype)
    names = [lap.name for lap in times.laps]
    assert names[0] == f"{name}.py" and set(contest.runners(SIZES[name], dtype, (9, 0))) >= set(names[1:]) - set(peers(names))
    assert all(0 < lap.seconds < 1 for lap in times.laps)
    assert not any("no graph" in remark for remark in times.remarks)  # Numba's launches are captured
    assert timed.picture(contest, times, "").svg.startswith("<svg")


def peers(names):
    """The names of PyTorch's contenders."""
    return [name for name in names if name.startswith("PyTorch, ")]


def test_a_graph_gives_the_time_without_the_host():
    """The template's time by graph is below the host's time for a launch through Numba, some 10 µs and more."""
    (own, *_) = timed.measure(TEMPLATES / "matmul.py", CONTESTS["matmul"], (16, 16, 16), np.dtype(np.float32)).laps
    assert own.seconds < 8e-6


def test_a_function_that_waits_is_timed_by_the_host(tmp_path):
    path = tmp_path / "softmax.py"
    launch = "    softmax_kernel[-(-x.shape[0] // 32), 32](x, out)\n"
    text = (TEMPLATES / "softmax.py").read_text()
    assert launch in text
    path.write_text(text.replace(launch, f"{launch}    cuda.synchronize()\n"))
    times = timed.measure(path, CONTESTS["softmax"], (64, 128), np.dtype(np.float32))
    assert any("timed with its launches by the host" in remark for remark in times.remarks)
    assert times.laps[0].seconds > 0
    assert cuda.to_device(np.ones(3)).copy_to_host().sum() == 3  # the stream has left the capture


def test_memory_that_the_function_allocates_stays_its_own(tmp_path):
    path = tmp_path / "softmax.py"
    launch = "    softmax_kernel[-(-x.shape[0] // 32), 32](x, out)\n"
    twice = launch.replace("(x, out)", "(x, scratch)") + launch.replace("(x, out)", "(scratch, out)")
    scratch = f"    scratch = cuda.device_array_like(x)\n{twice}"
    text = (TEMPLATES / "softmax.py").read_text().replace(launch, scratch)
    path.write_text(text)
    with pytest.raises(timed.ExerciseError, match="is wrong"):  # a softmax of a softmax
        timed.measure(path, CONTESTS["softmax"], (64, 128), np.dtype(np.float32))
    path.write_text(text.replace("(scratch, out)", "(x, out)"))
    assert timed.measure(path, CONTESTS["softmax"], (64, 128), np.dtype(np.float32)).laps[0].seconds > 0
