"""Write the lessons as executed notebooks, lessons/NN_name.ipynb, which forges and notebook services show as they are.

    python tools/write_notebooks.py             every lesson
    python tools/write_notebooks.py 01 03       those that begin so

They are generated: run it after every change of a lesson, and commit the result. A lesson that fails keeps its notebook, the others are
written, and the exit code is 1. Each is executed from an empty folder, as its readers may. Needs `pip install -e '.[lessons]'`.
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from run_lessons import chosen, execute

from minllm.bench.kernel_keys import share_keys
from minllm.course import load_record

sys.path.insert(0, str(Path(__file__).parent / "site"))
from addresses import addresses
from lesson_notebook import notebook_of, portable_outputs

MOST_BYTES = 250_000


def write(lesson: Path) -> str:
    """Execute a lesson and write its notebook; "" or what went wrong."""
    known = addresses()
    notebook = notebook_of(lesson, known)
    with tempfile.TemporaryDirectory() as folder:
        failure = execute(notebook, folder)
    if failure:
        return failure
    notebook.metadata.language_info = {"name": "python"}
    text = nbformat.writes(portable_outputs(notebook, known)) + "\n"
    if len(text.encode()) > MOST_BYTES:
        return f"{len(text.encode()):,} bytes are more than {MOST_BYTES:,}"
    lesson.with_suffix(".ipynb").write_text(text, encoding="utf-8")
    return ""


def main(prefixes: list[str]) -> int:
    """Write the requested notebooks; returns the exit code."""
    share_keys(load_record()["rows"])
    failures = 0
    for number, lesson in enumerate(lessons := chosen(prefixes), 1):
        begin = time.perf_counter()
        failure = write(lesson)
        failures += bool(failure)
        print(f"{number} of {len(lessons)}  {lesson.stem:<50} {time.perf_counter() - begin:6.1f} s  {failure or 'written'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
