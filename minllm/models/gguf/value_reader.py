"""Reads numbers and strings of a GGUF header; lengths are checked before anything is read or allocated.

All numbers are little-endian. A string is a uint64 length and that many bytes of UTF-8, without a terminating zero.
"""

import struct
from pathlib import Path

import numpy as np

from minllm.errors import CheckpointError

LARGEST_HEADER = 100_000_000  # bytes; a vocabulary of 256,000 tokens with its merges takes about 15 million


class ValueReader:
    """Reads the header of a file from its mapped bytes. `at` is the position of the next byte."""

    def __init__(self, path: Path, data: np.ndarray):
        """data: uint8, the whole file."""
        self.path, self.at = path, 0
        self._data = data.data[:LARGEST_HEADER]
        self._is_cut = len(data) > LARGEST_HEADER

    def _take(self, size: int, what: str) -> memoryview:
        """The next `size` bytes. Raises CheckpointError if the file has fewer; what: their description in the error."""
        self.require(size, what)
        taken = self._data[self.at : self.at + size]
        self.at += size
        return taken

    def require(self, size: int, what: str) -> None:
        """Raises CheckpointError unless the header can hold `size` more bytes."""
        left = len(self._data) - self.at
        if size <= left:
            return
        if self._is_cut:
            raise self.damaged(f"{what} needs {size:,} bytes at byte {self.at:,}, and a header may have {LARGEST_HEADER:,} in all")
        raise self.damaged(f"{what} needs {size:,} bytes at byte {self.at:,}, and the file has {left:,} left")

    def damaged(self, what: str) -> CheckpointError:
        """The error for a file that is damaged or not GGUF."""
        return CheckpointError(f"{self.path}: {what}; the file is damaged or was cut short, copy it again.")

    def number(self, code: str, what: str) -> int | float | bool:
        """The next number; code: of the struct module, "I" is uint32, "Q" is uint64."""
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code), what))[0]

    def count(self, code: str, what: str) -> int:
        """The next number, an integer; arguments as for `number`."""
        return int(self.number(code, what))

    def numbers(self, dtype: np.dtype, count: int, what: str) -> np.ndarray:
        """The next `count` numbers, as a view of the file."""
        return np.frombuffer(self._take(count * dtype.itemsize, what), dtype)

    def string(self, what: str) -> str:
        """The next string. Raises CheckpointError if it is not valid UTF-8."""
        length = self.count("Q", f"the length of {what}")
        raw = bytes(self._take(length, what))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is not valid UTF-8 ({error.reason} at its byte {error.start})") from None
