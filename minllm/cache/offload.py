"""Host offload (swapping): preempted sequences are kept in host memory.

A preempted sequence can be recomputed, or swapped: copied to the host and back over PCIe. costs/swap.py predicts which is faster, and
`minllm bench swap` measures it. Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", section 4.5.

The blocks of a sequence are scattered over the cache, with a part in every layer: copying them one by one would take thousands of small
transfers. A kernel gathers up to `chunk_blocks` of them from all layers into a buffer on the device, which is copied to the host in one
transfer; on the way back another kernel scatters them. All this runs on two streams (transfers.py), overlapped with the forward passes of
the other sequences; with two buffers the next chunk is gathered while this one is copied. The dependencies:

    swap out  gather waits for the kernels launched before and for the last copy out of its buffer; copy waits for its gather. The blocks
              belong to the sequence until they are gathered (`reap`). The last chunks may still be copied then; a swap in waits for them
    swap in   copy waits for the last scatter from its buffer; scatter waits for its copy, and for the kernels launched before, which may
              still use the new blocks. Kernels launched later wait for the scatter

The host waits for none of this. Its memory is locked once, when the SwapSpace is made, because locking is much slower than copying.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.policy import CachePolicy
from minllm.errors import CacheError, InvalidOptionError, OutOfMemoryError
from minllm.kernels.kv.copy_blocks import rows_of_words
from minllm.runtime.array_protocol import Array

CHUNK_BYTES = 32 << 20  # size of a buffer and of a chunk of host memory; copying a chunk takes longer than its launches
BUFFERS = 2


@dataclass(slots=True)
class Buffer:
    """A chunk's memory on the device, between the cache and the host."""

    memory: Array  # uint8 [chunk_bytes]
    free: Any = None  # the event after which the buffer may be written again
    parts: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)  # number of blocks -> see SwapSpace._parts


@dataclass(slots=True)
class Swapped:
    """A sequence in host memory."""

    token_ids: list[int]
    num_computed: int  # number of tokens with stored keys and values
    chunks: list[np.ndarray]  # host memory, chunk_blocks blocks each


class SwapSpace:
    """Host memory, `capacity_bytes` allocated at once, for swapped sequences of one cache and policy.

    cache: a kv_cache.KVCache, plain or quantised. policy: assigns the cache's blocks. transfers: see transfers.py. chunk_blocks: blocks
    per copy, by default as many as fit CHUNK_BYTES. Raises OutOfMemoryError, and InvalidOptionError for a cache with a residual window,
    because its newest tokens are in no block.
    """

    def __init__(self, cache: Any, policy: CachePolicy, transfers: Any, capacity_bytes: int, chunk_blocks: int | None = None):
        if cache.shape.residual_window:
            raise InvalidOptionError("sequences of a cache with a residual window are not swapped: recompute them, or give it no window")
        self.policy, self.transfers = policy, transfers
        self.arrays = [rows_of_words(array) for array in cache.arrays]  # each [2 * layers, num_blocks, words of a block]
        self.block_bytes = cache.shape.bytes_per_block
        self.chunk_blocks = chunk_blocks or max(1, CHUNK_BYTES // self.block_bytes)
        self.chunk_bytes = self.chunk_blocks * self.block_bytes
        self.max_chunks = capacity_bytes // self.chunk_bytes
        host = transfers.host(self.max_chunks * self.chunk_bytes).reshape(self.max_chunks, self.chunk_bytes)
        self._idle = list(host)  # unused chunks
        self._buffers = [Buffer(transfers.device((self.chunk_bytes,), np.uint8)) for _ in range(BUFFERS)]  # the next one first
        self._swapped: dict[Hashable, Swapped] = {}
        self._leaving: dict[Hashable, Any] = {}  # sequence whose blocks are being gathered -> event when done
        self._arriving: dict[Hashable, Any] = {}  # sequence whose blocks are being written -> event when done
        self._pairs = transfers.device((policy.num_blocks, 2), np.int32)
        self._host_pairs: list[tuple[np.ndarray, Any]] = []  # (host memory for pairs, event after which it may be written again)

    @property
    def bytes_used(self) -> int:
        """Bytes of host memory in use."""
        return (self.max_chunks - len(self._idle)) * self.chunk_bytes

    def swap_out(self, sequence: Hashable, num_computed: int) -> None:
        """Start to copy a sequence's first `num_computed` tokens to the host; `reap` frees its blocks later.

        Raises OutOfMemoryError if the host memory is full (recompute the sequence instead), CacheError for an unknown sequence, one that is
        already swapped out, or more tokens than it has. If it raises, nothing has changed.
        """
        token_ids, table = self.policy.tokens(sequence), self.policy.table(sequence)
        if sequence in self._swapped:
            raise CacheError(f"sequence {sequence!r} is swapped out already: swap it in before")
        if not 0 < num_computed <= len(token_ids):
            raise CacheError(f"{num_computed} computed tokens of {sequence!r} cannot be swapped: it has {len(token_ids)}")
        blocks = table[: blocks_needed(num_computed, self.policy.block_size)]
        chunks = self._take_chunks(sequence, blocks_needed(len(blocks), self.chunk_blocks))
        pairs = self._upload_pairs(blocks, np.arange(len(blocks)) % self.chunk_blocks)
        gathering, copying = self.transfers.gathering, self.transfers.copying
        self.transfers.after_compute()
        for chunk, start in zip(chunks, range(0, len(blocks), self.chunk_blocks), strict=True):
            count, buffer = min(self.chunk_blocks, len(blocks) - start), self._next_buffer(gathering)
            for array, part in self._parts(buffer, count):
                self.transfers.copy_blocks(array, part, pairs[start : start + count])
            copying.wait(gathering.record())
            size = count * self.block_bytes
            self.transfers.download(buffer.memory[:size], chunk[:size])
            buffer.free = copying.record()
        self._leaving[sequence] = gathering.record()
        self._swapped[sequence] = Swapped(token_ids, num_computed, chunks)

    def reap(self, wait: bool = False) -> int:
        """Free the blocks of gathered sequences (with `wait`, of all leaving ones); returns the number of sequences."""
        done = [sequence for sequence, event in self._leaving.items() if wait or event.is_done]
        for sequence in done:
            self._leaving.pop(sequence).sync()
            self.policy.free(sequence)
        return len(done)

    def release(self, sequence: Hashable) -> None:
        """Free a leaving sequence's blocks now: kernels launched later wait until they are gathered; the host does not wait."""
        self.transfers.before_compute(self._leaving.pop(sequence))
        self.policy.free(sequence)

    def __contains__(self, sequence: Hashable) -> bool:
        """Whether a sequence is in host memory."""
        return sequence in self._swapped

    def swap_in(self, sequence: Hashable, max_tokens: int = 0, beside: bool = False, tenant: str = "") -> int:
        """Reserve blocks for a swapped sequence and start to copy its keys and values into them.

        max_tokens, tenant: see CachePolicy.reserve.
        Kernels launched later wait for the copies; with `beside` they do not, and the sequence may run once `has_arrived` is true.
        Returns the number of its computed tokens. Raises as CachePolicy.reserve does, and then the sequence stays swapped; CacheError for
        an unknown sequence.
        """
        swapped = self._known(sequence)
        if sequence in self._leaving:
            self._leaving.pop(sequence).sync()
            self.policy.free(sequence)
        cached = self.policy.reserve(sequence, swapped.token_ids, max_tokens, tenant)
        first, table = cached // self.policy.block_size, self.policy.table(sequence)
        count = blocks_needed(swapped.num_computed, self.policy.block_size)
        pairs = self._upload_pairs(np.arange(count) % self.chunk_blocks, table[:count])
        gathering, copying = self.transfers.gathering, self.transfers.copying
        self.transfers.after_compute()
        for chunk, start in zip(swapped.chunks, range(0, count, self.chunk_blocks), strict=True):
            stop = min(count, start + self.chunk_blocks)
            begin = max(first, start)  # blocks that the policy found in the prefix cache are shared: they are not overwritten
            if begin < stop:
                size, buffer = (stop - start) * self.block_bytes, self._next_buffer(copying)
                self.transfers.upload(chunk[:size], buffer.memory[:size], copying)
                gathering.wait(copying.record())
                for array, part in self._parts(buffer, stop - start):
                    self.transfers.copy_blocks(part, array, pairs[begin:stop])
                buffer.free = gathering.record()
        event = self._arriving[sequence] = gathering.record()
        if not beside:
            self.transfers.before_compute(event)
        self.drop(sequence)
        return max(cached, swapped.num_computed)

    def has_arrived(self, sequence: Hashable) -> bool:
        """Whether no keys and values of a sequence are still being swapped in."""
        if sequence in self._arriving and self._arriving[sequence].is_done:
            del self._arriving[sequence]
        return sequence not in self._arriving

    def drop(self, sequence: Hashable) -> None:
        """Drop a swapped sequence. Raises CacheError for an unknown one."""
        swapped = self._known(sequence)
        if sequence in self._leaving:
            self._leaving.pop(sequence).sync()
            self.policy.free(sequence)
        del self._swapped[sequence]
        self._idle += swapped.chunks  # may be reused at once, because all copies run in one stream

    def _known(self, sequence: Hashable) -> Swapped:
        if sequence not in self._swapped:
            raise CacheError(f"sequence {sequence!r} is not swapped out: it never was, or it came back or was dropped before")
        return self._swapped[sequence]

    def _take_chunks(self, sequence: Hashable, count: int) -> list[np.ndarray]:
        if count > len(self._idle):
            raise OutOfMemoryError(
                f"{sequence!r} needs {count} chunks of {self.chunk_bytes / 2**20:.1f} MiB of host memory, and "
                f"{len(self._idle)} of {self.max_chunks} are left: recompute it, or give more"
            )
        return [self._idle.pop() for _ in range(count)]

    def _upload_pairs(self, sources: list[int] | np.ndarray, destinations: list[int] | np.ndarray) -> Any:
        """Pairs of block numbers, int32 [P, 2], on the device, uploaded in the order of the `gathering` stream."""
        place = next((i for i, (_, event) in enumerate(self._host_pairs) if event.is_done), None)
        if place is None:
            host = self.transfers.host(8 * self.policy.num_blocks).view(np.int32).reshape(-1, 2)
        else:
            host, _ = self._host_pairs.pop(place)
        count = len(sources)
        host[:count, 0], host[:count, 1] = sources, destinations
        self.transfers.upload(host[:count], self._pairs[:count], self.transfers.gathering)
        self._host_pairs.append((host, self.transfers.gathering.record()))
        return self._pairs[:count]

    def _next_buffer(self, stream: Any) -> Buffer:
        """The next buffer; `stream` waits until the buffer's last chunk has been read."""
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        if buffer.free is not None:
            stream.wait(buffer.free)
        return buffer

    def _parts(self, buffer: Buffer, count: int) -> list[tuple[Any, Any]]:
        """Each array of the cache with its part of a buffer for `count` blocks, [2 * layers, count, words].

        They are cached, because making them takes as long as launching the kernel that uses them.
        """
        if count not in buffer.parts:
            parts, start = [], 0
            for array in self.arrays:
                size = array.nbytes // array.shape[1] * count
                parts.append((array, buffer.memory[start : start + size].view(array.dtype).reshape(array.shape[0], count, array.shape[2])))
                start += size
            buffer.parts[count] = parts
        return buffer.parts[count]
