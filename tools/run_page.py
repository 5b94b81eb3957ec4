"""Run the programs on a page of the docs, and write their output and pictures into the page.

    python tools/run_page.py docs/simulator.md            run, and update the page and its pictures
    python tools/run_page.py docs/simulator.md --check    run, and report differences; exit code 1 if there are any

    ```python title="race.py"     a whole program: the file of that name
    ```text                       the next block: the program's output, run in the folder of all programs of the page. A minllm error ends
                                  it with the error's line, wrapped
    ```console                    `$ command`, then its output without a GPU. Lines that begin with "(Pdb) " are typed into the debugger

Pictures that a program saves go to docs/assets/PAGE/, for the page to show. A command's numbers depend on the versions of the compiler, so
a check compares only the first word of each of its lines; a debugger's `>` lines depend on Python's version and are not compared.
"""

import argparse
import contextlib
import io
import linecache
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from minllm.errors import MinLLMError

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(python title=\"(?P<name>\S+)\"|text|console)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 80  # width of reports, so that a page shows them whole
TERMINAL = 118
PROMPT = "(Pdb) "
SECONDS = 100


def run_program(name, source, folder):
    """The output of a program, run as the file `name` in a folder, including the last line of a minllm error."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        linecache.checkcache(name)
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
        except MinLLMError as error:
            line = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
            printed.write(textwrap.fill(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) + "\n")
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def run_console(shown, folder):
    """The terminal session of a console block's command, with the block's input to the debugger."""
    command, *lines = shown.splitlines()
    typed = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
    words = command.removeprefix("$ ").split()
    words = [sys.executable, "-m", "minllm", *words[1:]] if words[0] == "minllm" else [sys.executable, *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(TERMINAL), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, cwd=folder, env=environment, input="\n".join([*typed, ""]), capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    first, *answers = done.stdout.replace(f"{os.path.realpath(folder)}/", "").split(PROMPT)
    told = first + "".join(f"{PROMPT}{line}\n{answer}" for line, answer in zip(typed, answers))
    return "".join(f"{line.rstrip()}\n" for line in f"{command}\n{told}".splitlines())


def same_session(shown, run):
    """Whether two console blocks agree, apart from differences due to versions of the compiler and of Python."""

    def told(text):
        if PROMPT in text:
            return [line for line in text.splitlines() if not line.startswith((">", "->"))]
        return [line.split()[:1] for line in text.splitlines()]

    return told(shown) == told(run)


def rebuilt(text, folder):
    """(the page with fresh outputs, the page with only those outputs replaced that differ by more than versions explain)."""
    fresh, mended, at, program = [], [], 0, None
    for block in BLOCK.finditer(text):
        body = block["body"]
        if block["name"]:
            Path(folder, block["name"]).write_text(body, encoding="utf-8")
            program, run = block, body
        elif block[1] == "text":
            if program is None:
                raise ValueError(f"no program comes before the output {body[:60]!r}")
            run, program = run_program(program["name"], program["body"], folder), None
        else:
            run = run_console(body, folder)
        kept = block[1] == "console" and same_session(body, run)
        between = text[at : block.start("body")]
        fresh += [between, run]
        mended += [between, body if kept else run]
        at = block.end("body")
    return "".join([*fresh, text[at:]]), "".join([*mended, text[at:]])


def main(arguments=None):
    """Run the page; returns 1 if a check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing, and say what differs")
    options = parser.parse_args(arguments)
    text = options.page.read_text(encoding="utf-8")
    assets = options.page.resolve().parent / "assets" / options.page.stem
    with tempfile.TemporaryDirectory() as folder:
        fresh, mended = rebuilt(text, folder)
        pictures = {assets / path.name: path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.svg"))}
    if options.check:
        stale = [path for path, drawn in pictures.items() if not path.is_file() or path.read_text(encoding="utf-8") != drawn]
        stale += [options.page] if mended != text else []
        for path in stale:
            print(f"{path} is not what its programs make; python tools/run_page.py {options.page} writes it anew")
        return int(bool(stale))
    options.page.write_text(fresh, encoding="utf-8")
    for path, drawn in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
