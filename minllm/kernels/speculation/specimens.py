"""Specimens of the speculation kernels."""

from minllm.kernels.specimen import FLOAT32, INT32, UINT8, UINT32, Specimen, array
from minllm.kernels.speculation import (
    accept,
    accept_tree,
    advance_spans,
    distribution,
    draft_rows,
    load_spans,
    lookahead,
    perturb,
    prompt_lookup,
    reject_tree,
    rejection,
    row_sampling,
    synthetic,
)


def specimens():
    """All kernels; each moves a few bytes per row, except prompt lookup in a long context and rows of requests with penalties."""
    ints, rows, floats = array(INT32, 1), array(INT32, 2), array(FLOAT32, 2)
    arguments = (ints, ints, ints, rows, rows, ints, ints, ints, ints, ints, rows, INT32, INT32, ints, INT32, ints, INT32)
    yield Specimen("speculation/load_spans", load_spans.load_spans_kernel, arguments, load_spans.THREADS, blocks=8)
    arguments = (ints, ints, INT32, INT32, ints, ints, INT32, INT32, ints, INT32)
    yield Specimen("speculation/row_words", row_sampling.row_words_kernel, arguments, row_sampling.THREADS, blocks=8)
    flags = array(UINT8, 2)
    arguments = (ints, rows, flags, rows, floats, flags, rows, floats, INT32, ints, INT32)
    yield Specimen("speculation/row_vocabulary", row_sampling.row_vocabulary_kernel, arguments, row_sampling.THREADS, blocks=6)
    yield Specimen("speculation/run_slots", draft_rows.run_slots_kernel, (ints, INT32, ints), draft_rows.THREADS, blocks=8)
    arguments = (ints, ints, ints, INT32, ints)
    yield Specimen("speculation/room_for_drafts", draft_rows.room_for_drafts_kernel, arguments, draft_rows.THREADS, blocks=8)
    yield Specimen("speculation/store_drafts", draft_rows.store_drafts_kernel, (ints, ints, INT32, rows), draft_rows.THREADS, blocks=8)
    arguments = (rows, ints, INT32, ints, ints, rows)
    yield Specimen("speculation/store_children", draft_rows.store_children_kernel, arguments, draft_rows.THREADS, blocks=8)
    arguments = (floats, ints, INT32, array(FLOAT32, 3))
    yield Specimen("speculation/store_log_q", draft_rows.store_log_q_kernel, arguments, draft_rows.THREADS, blocks=8)
    yield Specimen("speculation/accept", accept.accept_kernel, (ints, ints, ints, ints), accept.THREADS, blocks=8)
    arguments = (ints, ints, ints, ints, ints, ints, ints, ints)
    yield Specimen("speculation/accept_tree", accept_tree.accept_tree_kernel, arguments, accept_tree.THREADS, blocks=8)
    arguments = (ints, ints, array(UINT32, 2), FLOAT32, ints)
    yield Specimen("speculation/accept_synthetic", synthetic.accept_synthetic_kernel, arguments, synthetic.THREADS, blocks=8)
    arguments = (ints, ints, ints, ints, ints, rows, ints, ints, rows)
    yield Specimen("speculation/advance_spans", advance_spans.advance_spans_kernel, arguments, advance_spans.THREADS, blocks=8)
    column, seed = array(FLOAT32, 1), array(UINT32, 2)
    arguments = (floats, column, ints, column, floats)
    yield Specimen("speculation/distribution", distribution.distribution_kernel, arguments, distribution.THREADS, blocks=1)
    arguments = (floats, array(FLOAT32, 3), ints, ints, ints, ints, seed, ints, ints)
    yield Specimen("speculation/reject", rejection.reject_kernel, arguments, rejection.THREADS, blocks=4)  # one block per run
    arguments = (ints, ints, ints, ints, array(INT32, 3), ints, rows, ints, INT32, INT32)
    yield Specimen("speculation/lookahead", lookahead.lookahead_kernel, arguments, lookahead.THREADS, blocks=8)
    arguments = (floats, array(FLOAT32, 3), ints, ints, ints, ints, ints, seed, ints, ints, ints, ints)
    yield Specimen("speculation/reject_tree", reject_tree.reject_tree_kernel, arguments, reject_tree.THREADS, blocks=4)  # one block per run
    arguments = (floats, floats, ints, column, ints, seed, floats)
    yield Specimen("speculation/perturb", perturb.perturb_kernel, arguments, perturb.THREADS, blocks=8)
    arguments = (ints, ints, rows, rows, ints, INT32, INT32)
    yield Specimen("speculation/prompt_lookup", prompt_lookup.prompt_lookup_kernel, arguments, prompt_lookup.THREADS, blocks=6)
