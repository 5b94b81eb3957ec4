"""A draft tree from a small model: several tokens after each node, level by level.

    a step of the model    the nodes of each sequence's tree, and chunks of prompts
    the same rows here     keys and values alone; the accepted path is compacted as in the model's cache
    a level at a time      root → its children → their children ..     one forward for all nodes of a level that have children

The nodes of a level do not attend to each other (kernels/attention/tree). Their keys lie in the slots to which the next verification writes
its own. Children are sampled by the request's own parameters without replacement, and accepted by kernels/speculation/reject_tree.py; or
they are the likeliest tokens, which accept_tree.py compares with the sampler's. Sources: Miao et al., "SpecInfer", ASPLOS 2024, section
3.1, expansion-based construction; the static trees are those of Cai et al., "Medusa", ICML 2024, section 2.1.2.
"""

from dataclasses import replace

from minllm.engine.drafting.draft_model import SALT, DraftModel
from minllm.engine.running.speculator import Chosen, compact
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.models.decoder import forward
from minllm.ops.batch import Array, Batch


class TreeModel(DraftModel):
    """A DraftSource for DraftState.tree, a tree with its nodes in the order of their levels."""

    def propose(self, slots: Array, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind, chosen: Chosen) -> None:
        """See DraftSource."""
        ops, tree = self.ops, drafts.nodes
        self.compute_keys(batch)
        compact(ops, self.cache, batch, chosen.path, chosen.counts)
        count = batch.num_runs
        for first, end in tree.host.levels:
            row_slots = ops.run_slots(slots, count, end - first)
            rows = self._rows(batch, count, state, len(tree), end - first)
            if end > 1:
                rows = replace(rows, tree=tree, first_node=first, num_decodes=0, num_verifications=count)
            ops.load_spans(row_slots, state, drafts, rows, self.cache.block_size, first, batch.room)
            logits = forward(ops, self.model, replace(rows, logits_rows=None), self.cache.layers)
            log_q = None
            if self.draws and kind is not SamplingKind.GREEDY:
                sampling, sampled_slots = ops.row_sampling(row_slots, state, drafts, kind, first, SALT)
                log_q = ops.distribution(logits, sampling, sampled_slots)
                logits = ops.perturb(log_q, logits, sampling, sampled_slots)
            most = max(tree.host.parents.count(node) for node in range(first, end))
            tokens = ops.log_probabilities(logits, rows.token_ids, most).top_token_ids
            ops.store_children(tokens, row_slots, first, drafts, log_q)
