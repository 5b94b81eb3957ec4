"""The small kernels between two decode steps; with a few bytes per row, their time is that of a launch."""

from types import SimpleNamespace

import numpy as np

from minllm.bench.kernel_case import FLOAT32, MICROSECONDS, KernelCase, Prepared
from minllm.bench.kernel_cases.sampling import VOCABULARY, mismatches
from minllm.kernels.slots.advance import advance, advance_reference
from minllm.kernels.slots.load_rows import load_rows, load_rows_reference
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots, write_slots_reference

BLOCK_SIZE, COLUMNS = 16, 512  # tokens, and block-table columns for contexts of 8192 tokens


def make_states(ops, random, num_slots: int) -> tuple[SlotState, SlotState]:
    """Equal states of greedy slots with contexts of all lengths: (on the host, on the device)."""
    host = SlotState.make(np.zeros, num_slots, COLUMNS)
    host.lengths[:] = random.integers(1, BLOCK_SIZE * COLUMNS, num_slots)
    host.block_tables[:] = random.permutation(num_slots * COLUMNS).reshape(num_slots, COLUMNS)
    words = ops.array(host.words)
    return host, SlotState.make(lambda shape, dtype: words, num_slots, COLUMNS)


def write_slots_case(rows: int = 64) -> KernelCase:
    """write_slots when each row's sequence gets a new cache block."""

    def prepare(ops, noise, sets):
        host, state = make_states(ops, noise.random, rows)
        pairs = host.block_pairs(np.arange(rows), noise.random.integers(0, COLUMNS, rows), np.arange(rows))
        on_device = ops.array(pairs)
        write_slots_reference(host.words, pairs)
        return Prepared(
            [lambda: write_slots(state.words, on_device, ops.stream)],
            [],
            result=lambda: ops.to_host(state.words),
            error=lambda found: mismatches(found, host.words),
        )

    return slots_case("write_slots", rows, prepare)


def load_rows_case(rows: int = 64) -> KernelCase:
    """load_rows for contexts of all lengths up to 8192 tokens."""

    def prepare(ops, noise, sets):
        host, state = make_states(ops, noise.random, rows)
        slots = noise.random.permutation(rows).astype(np.int32)
        names = ("token_ids", "positions", "slot_mapping", "context_lens", "block_tables")
        expected = SimpleNamespace(**{name: np.zeros((rows, COLUMNS)[: 1 + (name == "block_tables")], np.int32) for name in names})
        batch = SimpleNamespace(**{name: ops.array(array) for name, array in vars(expected).items()})
        device_slots = ops.array(slots)
        load_rows_reference(slots, host, expected, BLOCK_SIZE)
        return Prepared(
            [lambda: load_rows(device_slots, state, batch, BLOCK_SIZE, stream=ops.stream)],
            [],
            result=lambda: np.concatenate([ops.to_host(array).ravel() for array in vars(batch).values()]),
            error=lambda found: mismatches(found, np.concatenate([array.ravel() for array in vars(expected).values()])),
        )

    return slots_case("load_rows", rows, prepare)


def advance_case(rows: int = 64) -> KernelCase:
    """advance; each of the thousands of launches makes the sequences one token longer."""

    def prepare(ops, noise, sets):
        host, state = make_states(ops, noise.random, rows)
        slots, tokens = noise.random.permutation(rows).astype(np.int32), noise.random.integers(0, VOCABULARY, rows).astype(np.int32)
        device_tokens, device_slots = ops.array(tokens), ops.array(slots)
        advance_reference(tokens, slots, host)
        return Prepared(
            [lambda: advance(device_tokens, device_slots, state, ops.stream)],
            [],
            result=lambda: ops.to_host(state.words),
            error=lambda found: mismatches(found, host.words),
        )

    return slots_case("advance", rows, prepare)


def slots_case(variant: str, rows: int, prepare) -> KernelCase:
    """A case with the unit µs and no limit."""
    set_bytes = 2**40  # makes one set of inputs enough; the kernels read almost nothing
    return KernelCase(
        "slots",
        "sampling",
        f"{rows} rows",
        variant=variant,
        dtype=FLOAT32,
        unit=MICROSECONDS,
        work=0,
        set_bytes=set_bytes,
        prepare=prepare,
        tolerance=0.0,
    )


def cases() -> list[KernelCase]:
    """One case per kernel."""
    return [write_slots_case(), load_rows_case(), advance_case()]
