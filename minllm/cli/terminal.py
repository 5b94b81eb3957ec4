"""Terminal input and output: prompts that are typed or piped in, streamed text, and one-line errors."""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import typer
from rich.console import Console

from minllm.cli.text_input import argument_text, decoded
from minllm.errors import InvalidOptionError, MinLLMError

CONTROL_C = 130  # 128 + SIGINT, as shells report it


@contextmanager
def user_errors() -> Iterator[None]:
    """Convert exceptions to exit codes: MinLLMError and OSError to a line and 1, Ctrl-C to 130, a closed pipe silently to 0."""
    try:
        yield
    except MinLLMError as error:
        with suppress(OSError):
            sys.stdout.flush()
        print(f"minllm: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise typer.Exit(CONTROL_C) from None
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(0) from None
    except OSError as error:  # an unwritable file, a full disk
        print(f"minllm: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def drop_output() -> None:
    """Redirect both streams to the null device: Python flushes them at exit, and would then report an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_missing_streams() -> None:
    """Open the null device as file descriptors 0 to 2 if they are closed, so that no other file gets them.

    `minllm ... 2>&-` closes standard error; Python then sets sys.stderr to None. Exits with code 1 if standard output was closed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:
        print("minllm: standard output is closed: send it to a file, a pipe or /dev/null.", file=sys.stderr)
        sys.exit(1)


def run_to_the_end(command: Callable[[], None]) -> None:
    """Run a command and exit, after flushing the buffers: exit code 0 if the output pipe is closed, 1 for a full disk.

    Click and rich turn a closed pipe into exit code 1, but a reader that stops early is no failure of the program.
    """
    code = 0
    try:
        try:
            command()
        except SystemExit as stop:
            code = 0 if isinstance(stop.__context__, BrokenPipeError) else stop.code or 0
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        with suppress(OSError):
            if not code:  # otherwise an error was reported, perhaps this one
                print(f"minllm: {error}", file=sys.stderr)
        drop_output()
        code = code or 1
    sys.exit(code)


def output_file(path: Path | None) -> Path | None:
    """The callback of an option that names a file to write: exits with code 1 before any work if it cannot be written. "-" may be."""
    with user_errors():
        if path is None or str(path) == "-":
            return path
        folder = path.parent
        if path.is_dir():
            reason = errno.EISDIR
        elif not folder.is_dir():
            reason = errno.ENOTDIR if folder.exists() else errno.ENOENT
        elif not os.access(path if path.exists() else folder, os.W_OK):
            reason = errno.EACCES
        else:
            return path
        raise InvalidOptionError(f"{path} cannot be written: {os.strerror(reason)}. Name a file in a folder that exists.")


def required_input() -> TextIO:
    """Standard input. Raises InvalidOptionError if it is closed."""
    if sys.stdin is None:
        raise InvalidOptionError("standard input is closed, and the text is read from it: give a file, a pipe or a terminal.")
    return sys.stdin


def read_prompt(prompt: str) -> str:
    """The prompt as given, or the whole of standard input for "-".

    The final newline that shells and editors add is removed, as by the shell's $(...): a token often spans the newline and the indentation
    after it, and a prompt that ends between the two misleads a model. Raises InvalidOptionError for text that is not UTF-8.
    """
    if prompt != "-":
        return argument_text(prompt)
    return decoded(required_input().buffer.read(), "standard input").removesuffix("\n")


def user_lines() -> Iterator[str]:
    """The user's input, line by line, until an empty line or the end of the input. Raises InvalidOptionError if it is not UTF-8."""
    typed = required_input()
    while True:
        if typed.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = decoded(typed.buffer.readline(), "standard input").strip()
        if not line:
            return
        yield line


def show(before: Iterable[str], stream: Iterable[str]) -> None:
    """Write each piece as it comes, and a newline after the last."""
    sys.stdout.reconfigure(errors="replace")  # replaces characters that the terminal cannot show
    last = ""
    for pieces in (before, stream):
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            last = piece
    if not last.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()


def with_kernel_status(pieces: Iterable[str]) -> Iterator[str]:
    """Iterates over `pieces`; on a terminal, standard error names the kernel being compiled until the first piece arrives."""
    if not sys.stderr.isatty():
        yield from pieces
        return
    from minllm.runtime.kernel import compilation_listeners

    status = Console(stderr=True).status("")

    def show_kernel(name: str) -> None:
        status.update(f"preparing kernel {name}")
        status.start()

    compilation_listeners.append(show_kernel)
    try:
        for piece in pieces:
            if show_kernel in compilation_listeners:
                compilation_listeners.remove(show_kernel)  # from here on the text is written to this line
                status.stop()
            yield piece
    finally:
        if show_kernel in compilation_listeners:
            compilation_listeners.remove(show_kernel)
        status.stop()
