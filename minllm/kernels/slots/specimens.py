"""Specimens of the kernels that read and write the slots' state."""

from minllm.kernels.slots import advance, load_rows, write_slots
from minllm.kernels.specimen import INT32, Specimen, array


def specimens():
    """All kernels; each moves a few bytes per row, and takes as long as an empty launch."""
    ints, rows = array(INT32, 1), array(INT32, 2)
    yield Specimen("slots/write_slots", write_slots.write_slots_kernel, (ints, rows), write_slots.THREADS, blocks=8)
    arguments = (ints, ints, ints, rows, ints, ints, ints, ints, rows, INT32, INT32)
    yield Specimen("slots/load_rows", load_rows.load_rows_kernel, arguments, load_rows.THREADS, blocks=8)
    yield Specimen("slots/advance", advance.advance_kernel, (ints, ints, ints, ints, ints, ints, rows), advance.THREADS, blocks=8)
