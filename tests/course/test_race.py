"""`minllm race`: what it says of a file, without a GPU; and that a GPU's part asks for what the contests give."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from typer.testing import CliRunner

from minllm.bench.kernel_case import relative_error
from minllm.bench.timing import CudaClock
from minllm.catalogue.noise import Noise
from minllm.cli.app import app
from minllm.course.checks.ladder import result_lines
from minllm.course.race import command, simulated, timed
from minllm.course.race.command import CONTESTS, TEMPLATES
from minllm.errors import CaptureError, ExerciseError, InvalidOptionError
from minllm.ops.cuda_ops import CudaOps
from minllm.sim import numba_launches
from minllm.sim.host import Stream

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(command, "gpu_available", lambda: False)


def run(*arguments):
    return CliRunner().invoke(app, ["race", *(str(argument) for argument in arguments)])


def template(name, *replacements):
    """The text of a template with parts of it replaced, each of which occurs in it."""
    text = (TEMPLATES / f"{name}.py").read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def checked(path, text, name, dtype=FLOAT32, seconds=30):
    """The lines of the check of a text as a file."""
    path.write_text(text)
    return "\n".join(result_lines(simulated.check(path, CONTESTS[name], dtype, seconds)))


@pytest.mark.parametrize("name", CONTESTS)
def test_a_template_is_short_passes_and_is_traced(name, tmp_path, monkeypatch):
    monkeypatch.setitem(CONTESTS, name, replace(CONTESTS[name], rivals=CONTESTS[name].rivals[:1]))  # the others take long to trace
    path, svg = tmp_path / "mine.py", tmp_path / "mine.svg"
    assert run("--new", name, path).exit_code == 0
    assert len([line for line in path.read_text().splitlines() if line]) <= 28
    result = run(path, "--svg", svg)
    assert result.exit_code == 0, result.output
    assert "Passed: 7 of 7 cases." in result.output
    sizes = CONTESTS[name].traced_size
    least = int(re.search(r"Each array once is ([\d,]+) bytes", result.output)[1].replace(",", ""))
    elements = {
        "matmul": lambda m, n, k: m * k + n * k + m * n,
        "softmax": lambda rows, columns: 2 * rows * columns,
        "decode_attention": lambda s, keys, h, g, d: 2 * s * h * d + 2 * s * keys * g * d,
    }
    assert least == 4 * elements[name](*sizes)
    lines = result.output.splitlines()
    (line,) = (one for one in lines if one.startswith("mine.py  "))
    moved, times = int(line.split()[3].replace(",", "")), float(line.split()[4].removesuffix("x"))
    assert times == pytest.approx(moved / least, abs=0.06) and times > 1.5
    assert all(any(one.startswith(rival) for one in lines) for rival in CONTESTS[name].runners(sizes, FLOAT32))
    if name == "matmul":  # each thread reads a row of x and one of weight, as in the package's first rung
        m, n, k = sizes
        (naive,) = (one for one in lines if one.startswith("naive  "))
        assert line.split()[1:] == naive.split()[1:] and line.split()[2] == f"{4 * (2 * m * n * k + m * n):,}"
    assert svg.read_text().startswith("<svg") and "mine.py" in svg.read_text()
    refused = run("--new", name, path)
    assert refused.exit_code == 1 and "exists already" in refused.output


@pytest.mark.parametrize("name", CONTESTS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_rivals_compute_what_the_reference_does(name, dtype):
    contest, ops = CONTESTS[name], CudaOps(simulated=True)
    inputs = contest.inputs(contest.traced_size, dtype, Noise(length=simulated.NOISE), 1.0)
    for rival in contest.runners(contest.traced_size, dtype):
        arrays = dict(inputs, out=simulated.unwritten(contest.out_shape(inputs), dtype))
        contest.launcher(rival, arrays, ops)()
        if rival != "attention's first rung":  # that one works in place, on an array of its own
            assert relative_error(arrays["out"], contest.reference(inputs)) < (1e-4 if dtype == FLOAT32 else 1e-2), rival
    assert set(contest.parameters) == {*inputs, "out"}


GUARD, LOOP = "if m < out.shape[0] and n < out.shape[1]:", "for k in range(x.shape[1]):"
WRONG = {
    "no guard": ("matmul", [(GUARD, "if True:")], "one element", "out of bounds"),
    "weight not transposed": ("matmul", [("weight[n, k]", "weight[k, n]")], "16 x 16, K = 16", "Likely cause: weight is"),
    "one term too few": ("matmul", [(LOOP, "for k in range(x.shape[1] - 1):")], "one element", "every wrong element is 0|last term"),
    "no maximum": ("softmax", [("largest = max(largest, float32(x[row, column]))", "largest = float32(0)")], "large numbers", "overflows"),
    "no scale": ("decode_attention", [("score /= math.sqrt(float32(q.shape[2]))", "score *= 1")], "5 keys", "not scaled"),
    "heads": ("decode_attention", [("g = h // (q.shape[1] // k.shape[2])", "g = h % k.shape[2]")], "8 heads share", "not h % kv_heads"),
    "a value": ("softmax", [("    softmax_kernel[", "    return x\n    softmax_kernel[")], "one element", "return nothing"),
    "no launch": ("softmax", [("    softmax_kernel[", "    return\n    softmax_kernel[")], "one element", "launched no kernel"),
    "in place": ("softmax", [("largest) / total", "largest) / total\n            x[row, column] = 0")], "one element", "has changed x"),
    "raises": ("softmax", [("    softmax_kernel[", "    x.nothing()\n    softmax_kernel[")], "one element", "AttributeError"),
    "parameters": ("softmax", [("def softmax(x, out)", "def softmax(x, out, extra)")], "your code loads", "the race calls softmax"),
    "ends the program": ("softmax", [("import math\n", "import math\nraise SystemExit\n")], "your code loads", "The file ends the program"),
}


@pytest.mark.parametrize("name, replacements, at, says", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_fails_at_its_case_with_the_cause(name, replacements, at, says, tmp_path):
    text = checked(tmp_path / "mine.py", template(name, *replacements), name)
    failed = next(line for line in text.splitlines() if "FAILED" in line)
    assert at in failed and re.search(says, text), text
    assert "Not yet" in text


def test_a_race_between_threads_is_named(tmp_path):
    tile = "partial = cuda.shared.array(32, float32)\n    partial[cuda.threadIdx.x] = 1\n    total = partial[31 - cuda.threadIdx.x]\n"
    text = template("softmax", ("    row = cuda.grid(1)", f"    {tile}    row = cuda.grid(1)"))
    assert "race on shared memory" in checked(tmp_path / "mine.py", text, "softmax")


def test_a_kernel_that_never_ends_is_stopped(tmp_path):
    text = template("matmul", (LOOP, "k = 0\n        while k < x.shape[1]:"))
    said = checked(tmp_path / "mine.py", text, "matmul", seconds=0.5)
    assert "Stopped after 0.5 seconds, still running" in said and "mine.py:" in said


def test_float16_is_checked_in_its_own_precision(tmp_path):
    assert "Passed" in checked(tmp_path / "mine.py", template("softmax"), "softmax", FLOAT16)


FILES = {
    "missing": (None, "cannot be read"),
    "without a function": ("def mine():\n    pass\n", "no function for a race; it must define one of matmul(x, weight, out), "),
    "with two": ("def matmul(x, weight, out):\n    pass\ndef softmax(x, out):\n    pass\n", "2 functions for a race: matmul, softmax"),
    "with a kernel": ("from numba import cuda\n@cuda.jit\ndef softmax(x, out):\n    pass\n", "line 3: softmax is decorated"),
    "that Python cannot read": ("def softmax(x, out:\n    pass\n", "line 1: Python cannot read this"),
}


@pytest.mark.parametrize("text, says", FILES.values(), ids=FILES.keys())
def test_a_file_that_cannot_race_is_refused_in_a_line(text, says, tmp_path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    result = run(path)
    assert result.exit_code == 1 and says in result.output and len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "name a file"),
        (["--new", "gemm"], "--new gemm is not allowed: a race is one of matmul, softmax, decode_attention"),
        (["FILE", "--dtype", "int8"], "--dtype int8 is not allowed: it takes float32 or float16"),
        (["FILE", "--size", "8x8x8"], "--size 8x8x8 is not allowed: for softmax it is rowsxcolumns, such as 8192x8192"),
        (["FILE", "--size", "0x8"], "--size 0x8 is not allowed"),
    ],
)
def test_wrong_options_are_refused_in_a_line(arguments, says, tmp_path):
    path = tmp_path / "softmax.py"
    path.write_text(template("softmax"))
    result = run(*(path if argument == "FILE" else argument for argument in arguments))
    assert result.exit_code == 1 and says in result.output and len(result.output.splitlines()) == 1


def test_heads_that_cannot_be_grouped_are_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(template("decode_attention"))
    result = run(path, "--size", "1x8x5x2x16")
    assert result.exit_code == 1 and "multiple of the kv_heads" in result.output


def test_a_failed_check_exits_with_1_and_traces_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(template("matmul", (GUARD, "if True:")))
    result = run(path)
    assert result.exit_code == 1 and "Traced" not in result.output and "not reached" in result.output


@pytest.mark.parametrize("name", CONTESTS)
def test_peers_get_the_arrays_that_they_ask_for(name):
    contest, ops = CONTESTS[name], CudaOps(simulated=True)
    inputs = contest.inputs(contest.traced_size, FLOAT16, Noise(length=simulated.NOISE), 1.0)
    given = contest.peer_inputs(dict(inputs, out=None), ops)
    asked = {"matmul": {"x", "weight"}, "softmax": {"x"}}.get(name, {"query", "key_cache", "value_cache", "block_tables", "context"})
    assert asked <= given.keys()
    speed = partial(contest.flops, contest.raced_size) if contest.flops else None
    assert speed is None or speed() == 2 * np.prod(contest.raced_size)


class StandInClock:
    """A clock without a GPU: it makes the calls, and reports a second per call of the first that it times, two of the second, ..."""

    made = []

    def __init__(self):
        self.made.append(self)
        self.time = float(len(self.made))

    def seconds(self, calls):
        for call in calls:
            call()
        return [self.time] * len(calls)

    def graph(self, calls):
        raise CaptureError("no graph")


class StandInReaderClock(timed.ReaderClock):
    __init__, seconds, made = StandInClock.__init__, StandInClock.seconds, StandInClock.made


@pytest.fixture
def stand_in_gpu(monkeypatch):
    """A GPU's part of a race, in the simulator; returns the streams of the reader's launches."""
    streams, configure = [], numba_launches.configure

    def noted(kernel, grid, block, stream=0, sharedmem=0):
        streams.append(stream)
        return configure(kernel, grid, block, stream, sharedmem)

    ops = CudaOps(simulated=True)
    ops.core_stream = Stream()
    device = SimpleNamespace(name="a stand-in", l2_bytes=4000, compute_capability=(8, 0))
    monkeypatch.setattr(numba_launches, "configure", noted)
    monkeypatch.setattr(StandInClock, "made", [])
    monkeypatch.setattr(StandInReaderClock, "made", StandInClock.made)
    monkeypatch.setattr("minllm.bench.timing.REST", 0)
    replaced = dict(current_device=lambda: device, CudaOps=lambda: ops, CudaClock=StandInClock, ReaderClock=StandInReaderClock)
    replaced |= dict(Interface=FakeCUDAArray, load_peers=no_peers)
    for name, value in replaced.items():
        monkeypatch.setattr(timed, name, value)
    with numba_launches.simulated_launches(detect=False):
        yield streams
    assert set(streams) <= {ops.core_stream}


def no_peers():
    raise InvalidOptionError("no PyTorch")


def test_a_race_times_all_contenders_on_one_stream(stand_in_gpu, tmp_path):
    contest, path = CONTESTS["softmax"], tmp_path / "mine.py"
    path.write_text(template("softmax", ("// 32), 32]", "// 32), 32, cuda.stream()]")))
    times = timed.measure(path, contest, (4, 8), FLOAT32)
    assert len(stand_in_gpu) >= 63  # as many sets of inputs, 256 bytes each, as fill the cache four times
    assert [lap.name for lap in times.laps] == ["mine.py", "attention's first rung"]
    assert [lap.seconds for lap in times.laps] == [1.0, 2.0]
    assert times.laps[0].speed == pytest.approx(2 * 4 * 8 * 4 / 1e12)  # TB/s, each array once
    assert "PyTorch is not installed" in times.remarks[0]
    assert "1,000,000.0 µs" in timed.table(contest, times)[0]
    assert "mine.py" in timed.picture(contest, times, "").alternative


def test_a_launch_that_no_graph_captures_is_timed_with_a_remark(stand_in_gpu, tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(template("softmax"))
    monkeypatch.setattr(StandInClock, "seconds", lambda self, calls: [call() and 0 or 2e-3 for call in calls])  # long: not replayed
    monkeypatch.setattr(StandInReaderClock, "seconds", lambda self, calls: [call() and 0 or 1e-5 for call in calls])
    monkeypatch.setattr(CudaClock, "graph", StandInClock.graph)
    monkeypatch.setattr("minllm.bench.timing.GRAPH_SECONDS", 1e-5)
    times = timed.measure(path, CONTESTS["softmax"], (4, 500), FLOAT32)
    assert times.remarks[-1] == "mine.py is timed with its launches by the host, because no graph can capture it: CaptureError: no graph"


def test_only_kernels_of_numba_cuda_are_timed(stand_in_gpu, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(template("softmax", ("softmax_kernel[-(-x.shape[0] // 32), 32](x, out)", "out[:] = x.copy_to_host()")))
    with pytest.raises(ExerciseError, match="mine.py launches no kernel of numba-cuda, and only those are timed"):
        timed.measure(path, CONTESTS["softmax"], (4, 8), FLOAT32)


def test_a_wrong_result_at_the_size_of_the_race_is_not_timed(stand_in_gpu, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(template("matmul", ("out[m, n] = total", "out[m, n] = total if out.shape[0] < 50 else float32(0)")))
    with pytest.raises(ExerciseError, match="result of matmul is wrong, so it was not timed: relative error 1, allowed 0.0001"):
        timed.measure(path, CONTESTS["matmul"], (64, 8, 8), FLOAT32)
