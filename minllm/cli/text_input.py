"""Text that users bring: UTF-8 from files, from standard input and from arguments, with or without a byte order mark."""

import os
import re
from pathlib import Path

from minllm.errors import InvalidOptionError

ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\\": "\\"}


def decoded(data: bytes, source: str) -> str:
    """UTF-8 as text, without a byte order mark, with \\n for Windows' \\r\\n. Raises InvalidOptionError, which names `source`."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        kind = " (it begins as UTF-16 does)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise InvalidOptionError(
            f"{source} is not UTF-8 text (byte {error.start}){kind}: convert it, for example with iconv."
        ) from None  # fmt: skip


def read_text_file(path: Path) -> str:
    """The text of a UTF-8 file. Raises InvalidOptionError if it cannot be read."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return decoded(data, str(path))


def argument_text(argument: str) -> str:
    """A command line's argument, which is UTF-8: in some locales Python decodes it as ASCII, with surrogates for other bytes."""
    return decoded(os.fsencode(argument), "the command line") if not argument.isascii() else argument


def unescaped(argument: str) -> str:
    r"""An argument with \n, \r, \t, \\ and \uXXXX as the characters that they stand for; any other backslash stays."""
    pattern = r"\\(?:[nrt\\]|u[0-9a-fA-F]{4})"
    return re.sub(pattern, lambda found: ESCAPES.get(found[0]) or chr(int(found[0][2:], 16)), argument_text(argument))
