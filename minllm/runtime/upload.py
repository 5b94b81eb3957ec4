"""Upload large host arrays through page-locked buffers, so that reading a piece overlaps the copy of the previous one.

    with Uploader(stream) as uploader:
        uploader.copy(device_array, host_array)

The driver copies pageable memory through a small buffer of its own with one thread, and returns when the copy is done. Here several threads
fill one buffer, rounding to the device array's dtype, while the GPU empties the other.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from minllm.runtime.array import DeviceArray
from minllm.runtime.host_threads import THREADS, host_threads
from minllm.runtime.memory import pinned_empty
from minllm.runtime.stream import write_later

BUFFER_BYTES = 32 << 20
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # NumPy copies its own integers faster than foreign dtypes


class Uploader:
    """Copies to the GPU in the order of a stream. The buffers are freed when the context ends."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.buffers = [pinned_empty((BUFFER_BYTES,), np.uint8) for _ in range(2)]
        self.events: list[Any] = [None, None]  # for each buffer, an event at the end of its last copy
        self.turn = 0
        self.threads = host_threads()

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(self, *_) -> None:
        self.threads.shutdown()
        for event in self.events:
            if event is not None:
                event.sync()

    def copy(self, array: DeviceArray, host: np.ndarray) -> None:
        """Overwrite a contiguous device array with a host array of its shape, which may have gaps and another floating-point dtype.

        The host array may change once this returns. Work launched from now on sees the new contents.
        """
        flat, start = array.reshape(-1), 0
        for piece in pieces(host, BUFFER_BYTES // array.dtype.itemsize):
            if self.events[self.turn] is not None:
                self.events[self.turn].sync()
            staged = self.buffers[self.turn][: piece.size * array.dtype.itemsize].view(array.dtype)
            self.fill(staged.reshape(piece.shape), piece)
            self.events[self.turn] = write_later(flat[start : start + piece.size], staged, self.stream)
            self.turn, start = 1 - self.turn, start + piece.size

    def fill(self, staged: np.ndarray, piece: np.ndarray) -> None:
        """Copy a piece to a buffer, some rows per thread."""
        if staged.dtype == piece.dtype:
            staged, piece = staged.view(WORDS[staged.itemsize]), piece.view(WORDS[piece.itemsize])
        rows = -(-len(piece) // THREADS)
        parts = [slice(first, first + rows) for first in range(0, len(piece), rows)]
        list(self.threads.map(lambda part: np.copyto(staged[part], piece[part], casting="unsafe"), parts))


def pieces(host: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Views of consecutive parts of an array, of at most `most` elements each: of its flat elements, or of its rows if it has gaps."""
    if not host.flags.c_contiguous and host[:1].size > most:
        host = np.ascontiguousarray(host)
    rows = host.reshape(-1) if host.flags.c_contiguous else host
    step = most // max(1, rows[:1].size)
    for first in range(0, len(rows), step):
        yield rows[first : first + step]
