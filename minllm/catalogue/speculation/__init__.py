"""The launches of speculation: R rows in runs, (slot, rows). The first row of a run holds the newest token, the others its drafts."""

from minllm.catalogue.launch import MachineCode, each
from minllm.catalogue.speculation import acceptance, drafts
from minllm.catalogue.speculation.states import RUNS
from minllm.kernels.speculation.token_tree import TokenTree

TREES = tuple(range(-1, 9)), (-1, 0, 0, 0, 1, 1, 2, 4, 5, 6), TokenTree.lookahead(5, 4, 3).parents  # a chain, a tree, levels


def compiled():
    """Each moves a few bytes per row, except prompt lookup in a long context and rows of requests with penalties."""
    launches = {
        "load_spans": drafts.load_spans(), "row_words": drafts.row_sampling(), "row_vocabulary": drafts.row_sampling(),
        "run_slots": drafts.run_slots(), "room_for_drafts": drafts.room_for_drafts(), "store_drafts": drafts.store_drafts(),
        "store_children": drafts.store_children(), "store_log_q": drafts.store_drafts(), "accept": acceptance.accept(),
        "accept_tree": acceptance.accept_tree(), "accept_synthetic": acceptance.accept_synthetic(0.5),
        "advance_spans": acceptance.advance_spans(), "distribution": acceptance.distribution(67, 20), "reject": acceptance.reject(67),
        "lookahead": drafts.lookahead(), "reject_tree": acceptance.reject_tree(67), "perturb": acceptance.perturb(67),
        "prompt_lookup": drafts.prompt_lookup(),
    }  # fmt: skip
    blocks = dict(row_vocabulary=6, distribution=1, reject=4, reject_tree=4, prompt_lookup=6)  # reject: one block per run
    for name, launch in launches.items():
        yield MachineCode(f"speculation/{name}", launch, blocks.get(name, 8), kernel_name=f"{name}_kernel")


def small():
    """Runs of any lengths, padding, trees; tests/kernels/speculation has distributions, paths and what a mistake looks like."""
    yield from each(drafts.load_spans, [(((2, 3), (0, 1)),), (), dict(limited=False)])
    yield from each(drafts.row_sampling, [(((2, 3), (1, 1)), 67), dict(runs=((2, 2), (0, 1), (5, 3)), ahead=2, salt=2**31 + 5)])
    yield from each(drafts.run_slots, [(((2, 3), (-1, 2), (0, 1)),), (), dict(each_run=3)])
    yield from each(drafts.room_for_drafts, [(((2, 3), (-1, 1), (0, 1)),), ()])
    yield from each(drafts.store_drafts, [()])
    yield from each(drafts.store_children, [()])
    yield from each(drafts.lookahead, [(), dict(added=30), dict(added=1100, runs=((2, 6), (0, 14), (5, 1), (3, 5)))])
    yield from each(drafts.prompt_lookup, [dict(period=2), dict(runs=RUNS, width=80), dict(runs=RUNS, width=80, longest=5, shortest=5)])
    yield from each(acceptance.accept, [(((2, 4), (-1, 1), (0, 2)),), ()])
    yield from each(acceptance.accept_tree, [(), *((tree, ((2, 3), (0, 10), (-1, 2), (5, 1), (3, 7)), False) for tree in TREES)])
    yield from each(acceptance.accept_synthetic, [(1.0, ((1, 4), (-1, 1), (0, 2))), (0.0,), (0.5,)])
    yield from each(acceptance.distribution, [(67, 20), (4100, 4100)])
    yield from each(acceptance.reject, [(67,), (1003,)])
    yield from each(acceptance.reject_tree, [(67,)])
    yield from each(acceptance.perturb, [(67,), (1003,)])
    yield from each(acceptance.advance_spans, [(((1, 3), (-1, 1), (2, 2)),), ()])
