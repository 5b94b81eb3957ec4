"""The command `minllm race`."""

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minllm.course.check_process import announce
from minllm.course.checks.ladder import all_passed, gpu_available, result_lines
from minllm.course.race import simulated
from minllm.course.race.contest import Contest
from minllm.course.race.decode_attention import DECODE_ATTENTION
from minllm.course.race.file import contest_of
from minllm.course.race.matmul import MATMUL
from minllm.course.race.softmax import SOFTMAX
from minllm.errors import ExerciseError, InvalidOptionError
from minllm.figures.picture_file import picture_file

CONTESTS: dict[str, Contest] = {contest.name: contest for contest in (MATMUL, SOFTMAX, DECODE_ATTENTION)}
DTYPES = ("float32", "float16")
TEMPLATES = Path(__file__).parent / "templates"
TABLE_WIDTH = 118  # characters


def write_template(name: str, path: Path | None) -> None:
    """Write a file to begin with. Raises InvalidOptionError for an unknown name, ExerciseError if the file exists."""
    if name not in CONTESTS:
        raise InvalidOptionError(f"--new {name} is not allowed: a race is one of {', '.join(CONTESTS)}")
    path = path or Path(f"{name}.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write((TEMPLATES / f"{name}.py").read_text(encoding="utf-8"))
    except FileExistsError:
        raise ExerciseError(f"{path} exists already: give another name, minllm race --new {name} FILE.py") from None
    print(f"{path}\n\nIt works, and is slow. Check, trace and race it: minllm race {shlex.quote(str(path))}")


def race(path: Path, dtype_name: str, size_text: str | None, picture: Path | None, progress: bool = False) -> bool:
    """Check, trace and, on a GPU, time the function of a file; returns whether it passed the check.

    Raises ExerciseError for a file that defines no such function, InvalidOptionError for a wrong dtype or size.
    """
    if dtype_name not in DTYPES:
        raise InvalidOptionError(f"--dtype {dtype_name} is not allowed: it takes {' or '.join(DTYPES)}")
    contest, dtype = contest_of(path, CONTESTS), np.dtype(dtype_name)
    size = contest.raced_size if size_text is None else parsed_size(size_text, contest)
    print(f"{contest.name}: {contest.equation}\n")
    results = simulated.check(path, contest, dtype, progress=announce if progress else None)
    print("\n".join(result_lines(results)), flush=True)
    if not all_passed(results):
        return False
    figure = show_trace(path, contest, dtype)
    if gpu_available():
        figure = show_times(path, contest, size, dtype)
    else:
        print("\n" + textwrap.fill(without_gpu(contest, size, dtype), TABLE_WIDTH, break_on_hyphens=False))
    if picture is not None:
        picture.write_text(picture_file(figure), encoding="utf-8")
        print(f"\n{picture}: {figure.alternative}")
    return True


def parsed_size(text: str, contest: Contest) -> tuple[int, ...]:
    """The numbers of a size. Raises InvalidOptionError if they are too many, too few, or not positive."""
    parts, names = text.lower().split("x"), "x".join(contest.size_names)
    if len(parts) != len(contest.size_names) or not all(part.isdecimal() and int(part) for part in parts):
        example = "x".join(map(str, contest.raced_size))
        raise InvalidOptionError(f"--size {text} is not allowed: for {contest.name} it is {names}, such as {example}")
    size = tuple(map(int, parts))
    by_name = dict(zip(contest.size_names, size))
    if "kv_heads" in by_name and by_name["heads"] % by_name["kv_heads"]:
        raise InvalidOptionError(f"--size {text} is not allowed: the heads must be a multiple of the kv_heads")
    return size


def show_trace(path: Path, contest: Contest, dtype: np.dtype):
    """Print the traces of the reader's kernels and compare them with the package's; returns the picture."""
    lanes, least = simulated.trace(path, contest, dtype)
    at = sizes(contest, contest.traced_size, dtype)
    print(f"\nTraced in the simulator at {at}:\n")
    for trace in lanes[0].traces:
        print(text(trace))
    print(f"Each array once is {least:,} bytes, the minimum. A cache may serve sectors that are read again.\n")
    print("\n".join(simulated.table(lanes, least)))
    return simulated.picture(contest, lanes, least, f"Counted in the simulator at {at}.")


def show_times(path: Path, contest: Contest, size: tuple[int, ...], dtype: np.dtype):
    """Race on the GPU, and print the times; returns the picture."""
    from minllm.course.race import timed

    times, at = timed.measure(path, contest, size, dtype), sizes(contest, size, dtype)
    print(f"\nRaced on one {times.device} at {at}, median GPU time of a launch:\n")
    print("\n".join(timed.table(contest, times)))
    return timed.picture(contest, times, f"Median of launches that read their inputs from HBM, at {at}.")


def without_gpu(contest: Contest, size: tuple[int, ...], dtype: np.dtype) -> str:
    """What a GPU would add to the output."""
    against = ", ".join([*contest.runners(size, dtype, None), *(f"PyTorch's {name}" for name in contest.peers(dtype))])
    return (
        f"No GPU was found (`minllm doctor` says why), so nothing was timed. With one, the same command also times this file at "
        f"{sizes(contest, size, dtype)}, in turn with {against}, and draws their speeds."
    )


def sizes(contest: Contest, size: Sequence[int], dtype: np.dtype) -> str:
    """A size and a dtype as text."""
    return ", ".join([*(f"{name} = {number:,}" for name, number in zip(contest.size_names, size)), dtype.name])


def text(trace) -> str:
    """The tables of a trace, without spaces at the ends of lines."""
    from minllm.sim.trace_table import text

    return "\n".join(line.rstrip() for line in text(trace).splitlines())
