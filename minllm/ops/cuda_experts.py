"""A mixture of experts on a GPU: the router's GEMM and choice, then the chosen experts' feed-forwards (kernels/experts).

    a few tokens   gather GEMVs, which read the weights of one choice after another
    more           a counting sort brings the tokens of each expert together, for two grouped GEMMs; combine adds a token's experts

float32 and rows that are not whole 16-byte vectors take the GEMVs for any number of tokens. With the fixed order of batch_invariant=True
all calls of a dtype take the same kernels, in which a token's result depends on no other token.
"""

from typing import Any

import numpy as np

from minllm.kernels.experts.combine import combine
from minllm.kernels.experts.counting_sort import sort_by_expert
from minllm.kernels.experts.gather_gemv import MOST_TOKENS, down_gemv, gate_up_gemv
from minllm.kernels.experts.grouped_gemm import fits, grouped_down, grouped_gate_up
from minllm.kernels.experts.routing import route
from minllm.ops.cuda_linear import CudaLinear
from minllm.ops.protocol import Routing
from minllm.weights.formats import plain_linear
from minllm.weights.linear import Linear


class CudaExperts(CudaLinear):
    """Part of CudaOps."""

    def experts(self, x: Any, router: Any, gate_up: Linear, down: Linear, routing: Routing) -> Any:
        """The weighted sum of each token's chosen experts: [T, hidden]."""
        tokens, chosen = x.shape[0], routing.per_token
        logits = self._matmul(x, plain_linear(router), np.dtype(np.float32))  # [T, experts]
        expert_ids, weights = self.empty((tokens, chosen), np.int32), self.empty((tokens, chosen), np.float32)
        route(logits, expert_ids, weights, routing.normalized, self.stream)
        activated = self.empty((tokens * chosen, gate_up.shape[0] // routing.experts // 2), self.dtype)
        out = self.empty(x.shape, self.dtype)
        if self._gathers(x, gate_up, activated, down):
            gate_up_gemv(x, expert_ids, gate_up.weight, activated, self.stream)
            down_gemv(activated, expert_ids, weights, down.weight, out, stream=self.stream)
            return out
        pairs, offsets = self.empty((tokens * chosen,), np.int32), self.empty((routing.experts + 1,), np.int32)
        sort_by_expert(expert_ids, pairs, offsets, self.stream)
        grouped_gate_up(x, pairs, offsets, gate_up.weight, activated, self.stream)
        outputs = self.empty((tokens * chosen, x.shape[1]), self.dtype)
        grouped_down(activated, pairs, offsets, down.weight, outputs, self.stream)
        combine(outputs, weights, out, stream=self.stream)
        return out

    def _gathers(self, x: Any, gate_up: Linear, activated: Any, down: Linear) -> bool:
        """Whether GEMVs compute the experts: for a few tokens, and for arrays that the grouped GEMM does not support."""
        few = x.shape[0] <= MOST_TOKENS and self.variants.get("matmul") != "fixed_order"
        return few or not fits(x, gate_up.weight, activated, down.weight)
