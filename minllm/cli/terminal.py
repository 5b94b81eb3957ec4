"""Terminal input and output: prompts typed or piped in, text as it is generated, and errors in one line."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from minllm.errors import InvalidOptionError, MinLLMError

CONTROL_C = 130  # 128 + SIGINT, as shells report it


@contextmanager
def user_errors() -> Iterator[None]:
    """Convert exceptions to exit codes: our errors to a line and 1, Ctrl-C to 130, a closed pipe to silence and 0."""
    try:
        yield
    except MinLLMError as error:
        sys.stdout.flush()
        print(f"minllm: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise typer.Exit(CONTROL_C) from None
    except BrokenPipeError:
        # Python flushes standard output once more at exit, and would report an error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except OSError as error:  # an unwritable file, a full disk
        print(f"minllm: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def read_prompt(prompt: str) -> str:
    """The prompt as given, or the whole of standard input for "-".

    The final newline that shells and editors add is removed, as the shell's own $(...) does: a token often spans the
    newline and the indentation after it, and a prompt that stops between the two leads a model astray.
    """
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidOptionError(f"standard input is not UTF-8 text (byte {error.start}): convert it, for example with iconv.") from None


def user_lines() -> Iterator[str]:
    """The user's input, line by line, until an empty line or the end of the input."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
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
    """`pieces`; until the first one arrives on a terminal, standard error names the kernel that is being compiled."""
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
                compilation_listeners.remove(show_kernel)  # from here on the line belongs to the text
                status.stop()
            yield piece
    finally:
        if show_kernel in compilation_listeners:
            compilation_listeners.remove(show_kernel)
        status.stop()
