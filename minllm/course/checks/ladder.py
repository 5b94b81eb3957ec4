"""Runs the rungs of a ladder one after the other until one fails, and writes the report.

Rungs run with all of the simulator's detectors on. Any exception of a reader's code becomes a message: where in the file, and
what that usually means.
"""

import contextlib
import functools
import re
import shlex
import textwrap
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minllm.course.checks.evidence import collecting
from minllm.course.checks.limits import StillRunning, limited
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercise import Exercise, Rung
from minllm.engine.progress import Progress
from minllm.errors import ExerciseError, SimulationError
from minllm.sim import detecting

EXPLAINED = ("Likely cause:", "What stands out:", "FILL IN", "keep their parameters", "enough")  # in self-explanatory messages
FIRST = "this is the smallest case: go through your lines with its numbers, by hand."
NEW_HERE = "all cases above passed, so suspect what this one adds to them."
SECONDS = 30  # CPU-time limit per rung; the reference solutions take less than one second

# The usual meanings of the simulator's findings, by part of their text.
MEANINGS = (
    (
        "out of bounds",
        "compare the index with the array's size before you use it (<, not <=), as the last block reaches beyond the edge; or two "
        "indices are exchanged.",
    ),
    (
        "is negative: a GPU",
        "the index is negative, which counts from the end. Is it a mark, such as -1 for padding, that you must test for?",
    ),
    ("cannot go on", "some threads wait for others who never come: a barrier or a shuffle stands in a branch or a loop that not all take."),
    ("memory that nobody wrote", "you read an element before anybody wrote it, or one that is not yours to read."),
    ("shared memory that nobody wrote", "a thread reads what another has not written yet: a barrier is missing, or an element left out."),
    ("race on shared memory", "two threads use one place, one of them writes, and nothing orders them: put cuda.syncthreads() between."),
    ("an undefined value", "a shuffle reads from a lane that its mask leaves out: keep that lane's result out of what you store."),
    ("is not defined: neither in", "a misspelt name, or one that is neither a parameter nor made or imported further up in the file."),
    ("has not been assigned", "the variable gets a value in one branch only, or after it is read: give it one at the start."),
    ("an integer is divided by 0", "a sum that may be 0 was divided by."),
    ("has overflowed", "the index needs more than 32 bits: compute it as int64."),
)

# The axis of arrays in attention that counts KV heads, and how the simulator names such an array and a wrong index.
KV_HEAD_AXIS = {"key_cache": 2, "value_cache": 2, "key_transposed": 1}
OUT_OF_BOUNDS = re.compile(r"index \[([\d, ]+)\] is out of bounds for the global array (\w+) of shape \(([\d, ]+)\)")
WRONG_KV_HEAD = "a query head stands where this array counts KV heads: several query heads share the KV head head // (heads // kv_heads)."

# The usual meanings of Python's and NumPy's own errors in an exercise: type, part of the text, meaning.
ERRORS = (
    (TypeError, "NoneType", "something is None here, as an argument with the default None may be: test it before you reckon with it."),
    (TypeError, "'method'", "a method is named there and not called: add its arguments in parentheses."),
    (UnboundLocalError, "", "the variable gets a value in one branch only, or after it is read: give it one at the start."),
    (NameError, "", "a misspelt name, or one that is neither a parameter nor made or imported further up in the file."),
    (AttributeError, "", "a misspelt attribute, or another kind of object than you take it for."),
    (ValueError, "could not be broadcast", "the shapes do not fit: keepdims=True keeps an axis of length 1, and x[..., None] adds one."),
    (ValueError, "truth value of an array", "an array was used as a condition: np.where chooses element by element."),
    (IndexError, "", "an index that is as large as the array, or an axis too many."),
    (ZeroDivisionError, "", "a sum that may be 0 was divided by."),
)


@dataclass(frozen=True)
class Result:
    """The result of a rung: "passed", "FAILED", "skipped" or "not reached", and a message; for a passed rung, its remark."""

    rung: Rung
    status: str
    message: str = ""


@dataclass(frozen=True)
class Report:
    """The results of all rungs of an exercise; str() gives the full text.

    file: the reader's, "" in a notebook.
    """

    exercise: Exercise
    results: tuple[Result, ...]
    file: str = ""

    @property
    def passed(self) -> bool:
        """Whether no rung failed."""
        return all_passed(self.results)

    @property
    def failed(self) -> Result | None:
        """The result of the rung that failed; None if none did."""
        return next((result for result in self.results if result.status == "FAILED"), None)

    def __repr__(self) -> str:
        return f"<Report of {self.exercise.name}: {'passed' if self.passed else f'failed at: {self.failed.rung.name}'}>"

    def __str__(self) -> str:
        title = f"{self.exercise.name}: {self.exercise.title} (lesson {self.exercise.lesson})"
        lines = [title, "", *result_lines(self.results)]
        if self.passed and self.exercise.stage:
            lines.append(self.how_to_generate())
        return "\n".join(lines)

    def how_to_generate(self) -> str:
        """The command that runs the engine with the reader's kernel."""
        stage, path = self.exercise.stage, Path(self.file)
        more = f" {self.exercise.engine_options}" if self.exercise.engine_options else ""
        if path.suffix == ".py" and path.is_file():
            return f"It can generate text now: minllm generate --variant {stage}={shlex.quote(self.file)}{more}"
        return (
            f"It can generate text from a file: `minllm exercise {self.exercise.name} --out FOLDER` writes one. Put your lines there, "
            f"then: minllm generate --variant {stage}=FOLDER/{self.exercise.file_name}{more}"
        )


def all_passed(results: Sequence[Result]) -> bool:
    """Whether no rung failed."""
    return all(result.status in ("passed", "skipped") for result in results)


def result_lines(results: Sequence[Result]) -> list[str]:
    """The results as lines of text, with a line that counts them."""
    lines = []
    for result in results:
        lines.append(f"  {result.status:<12} {result.rung.name}")
        if result.status == "FAILED":
            lines.append(textwrap.indent(f"{result.message}\nWhat this case is about: {result.rung.catches}", " " * 15))
        elif result.message:
            lines.append(textwrap.indent(result.message, " " * 15))
    counts = Counter(result.status for result in results)
    rest = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return [*lines, f"\n{'Passed' if all_passed(results) else 'Not yet'}: {counts['passed']} of {len(results)} cases{rest}."]


LOADS = Rung("your code loads", "Python reads the file, and finds in it what the check calls.", lambda entry: None)


def climb(
    exercise: Exercise, make_entry: Callable[[], Callable], file: str = "", seconds: float = SECONDS, progress: Progress | None = None
) -> Report:  # fmt: skip
    """The Report on the exercise's rungs; arguments as in `climbed`."""
    return Report(exercise, climbed(exercise.rungs, make_entry, file, seconds, progress), file)


def climbed(
    rungs: Sequence[Rung], make_entry: Callable[[], Callable], file: str, seconds: float = SECONDS, progress: Progress | None = None
) -> tuple[Result, ...]:  # fmt: skip
    """Run the rungs on the entry from `make_entry`, until one fails.

    file: the reader's, for messages. progress: called before each rung with its name, the number of rungs that have run, and their total.
    """
    made = []
    results = [tried(LOADS, lambda: made.append(make_entry()), file, seconds)]
    for done, rung in enumerate(rungs):
        if progress is not None and results[-1].status == "passed":
            progress(rung.name, done, len(rungs))
        if results[-1].status in ("FAILED", "not reached"):
            results.append(Result(rung, "not reached"))
        elif rung.needs_gpu and not gpu_available():
            results.append(Result(rung, "skipped", "needs a GPU, and none can be used here: `minllm doctor` says why"))
        else:
            look = rung.look or (NEW_HERE if rung is not rungs[0] else FIRST)
            with contextlib.nullcontext() if not rung.needs_gpu else collecting(False):
                results.append(tried(rung, functools.partial(rung.run, *made), file, seconds, look))
    return tuple(results)


def tried(rung: Rung, run: Callable[[], None], file: str, seconds: float, look: str = "") -> Result:
    """The result of one rung. look: the lines to suspect if no message explains the cause."""
    remarks = []
    message = complaint(lambda: remarks.append(run()), file, seconds, detect=not rung.needs_gpu)
    if message is not None:
        known = not look or rung.needs_gpu or any(words in message for words in EXPLAINED)
        return Result(rung, "FAILED", message if known else f"{message}\nWhere to look: {look}")
    return Result(rung, "passed", remarks[0] if isinstance(remarks[0], str) else "")


def complaint(run: Callable[[], None], file: str, seconds: float, detect: bool = True) -> str | None:
    """None if `run` completes, else a text about the error that stopped it."""
    try:
        with detecting(detect), warnings.catch_warnings(), limited(seconds):
            warnings.simplefilter("ignore", RuntimeWarning)  # a wrong kernel may overflow; the checks compare its numbers
            run()
    except Mismatch as error:
        return str(error)
    except ExerciseError as error:
        return str(error)
    except SimulationError as error:
        meaning = meaning_of(str(error))
        where = "" if file and file in str(error) else place(error, file)
        return f"The simulator stopped the kernel: {error}{where}" + (f"\nLikely cause: {meaning}" if meaning else "")
    except StillRunning as error:
        return f"Stopped after {seconds:g} seconds, still running{place(error, file)}.\nLikely cause: a loop whose condition stays true."
    except NotImplementedError as error:
        return f"{error or 'A part is not written yet'}{place(error, file)}: write the lines that the comment FILL IN asks for."
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: Python cannot read this: {error.msg}\n    {(error.text or '').strip()}"
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        return f"The file ends the program{place(error, file)}.\nLikely cause: a call of sys.exit() or exit(): remove it."
    except BaseException as error:  # a file that raises anything has not passed
        return f"{type(error).__name__}: {error}{place(error, file)}{advice(error, file)}"
    return None


def meaning_of(finding: str) -> str:
    """The usual meaning of a finding of the simulator; "" if unknown."""
    if (match := OUT_OF_BOUNDS.search(finding)) and match[2] in KV_HEAD_AXIS:
        index, shape = ([int(number) for number in re.findall(r"\d+", listed)] for listed in (match[1], match[3]))
        if [axis for axis, (i, size) in enumerate(zip(index, shape)) if i >= size] == [KV_HEAD_AXIS[match[2]]]:
            return WRONG_KV_HEAD
    return next((meaning for part, meaning in reversed(MEANINGS) if part in finding), "")


def advice(error: BaseException, file: str) -> str:
    """The usual meaning of a Python or NumPy error in an exercise, on its own line; "" if unknown."""
    text = str(error)
    if isinstance(error, TypeError) and ("positional argument" in text or "unexpected keyword" in text):
        return f"\nThe check calls functions of {file} as the package does: keep their parameters."
    for kind, part, meaning in ERRORS:
        if isinstance(error, kind) and part in text:
            return f"\nLikely cause: {meaning}"
    return ""


def place(error: BaseException, file: str) -> str:
    """The innermost location of an error in the reader's file or cell: " (FILE:line in function: `source line`)"; "" if none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or [frame for frame in frames if "ipykernel" in frame.filename]
    if not own:
        return ""
    frame = own[-1]
    return f" ({frame.filename}:{frame.lineno} in {frame.name}: `{frame.line}`)"


def gpu_available() -> bool:
    """Whether kernels can run on a GPU here."""
    from minllm.runtime.device import is_available

    return is_available()
