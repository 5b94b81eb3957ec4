"""A mixture of experts on a GPU: the router's GEMM and choice, then the chosen experts' feed-forwards (kernels/experts).

    one token      router and gather GEMVs, fused with the norm before them and the residual addition after them
    a few tokens   norm and router in one kernel; gather GEMVs, which find the chosen experts themselves and read one choice after another
    more           a counting sort brings the tokens of each expert together, for two grouped GEMMs; combine adds a token's experts, and
                   with them the residual and the next layer's norm, unless other ranks add to the result
    prompts        the same on Hopper, by TMA and wgmma, which needs the rows of x in the order of experts

float32 and rows that are not whole 16-byte vectors take the GEMVs for any number of tokens. Weights in int4 and fp8 take GEMVs and grouped
GEMMs, prompts too. With the fixed order of batch_invariant=True
all calls of a dtype take the same kernels, in which a token's result depends on no other token.
"""

from typing import Any

import numpy as np

from minllm.kernels.experts.combine import combine
from minllm.kernels.experts.combine_norm import combine_norm
from minllm.kernels.experts.combine_norm import fits as fits_combine_norm
from minllm.kernels.experts.counting_sort import sort_by_expert
from minllm.kernels.experts.gated_add import gated_add
from minllm.kernels.experts.gather_gemv import MOST_TOKENS, down_gemv, gate_up_gemv
from minllm.kernels.experts.gather_rows import gather_rows
from minllm.kernels.experts.grouped_gemm import fits, grouped_down, grouped_gate_up
from minllm.kernels.experts.grouped_wgmma import takes, wgmma_down, wgmma_gate_up
from minllm.kernels.experts.normed_router import fits as fits_normed_router
from minllm.kernels.experts.normed_router import normed_router
from minllm.kernels.experts.routing import route
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.ops.batch import Array, NormWeights, Routing
from minllm.ops.cuda_linear import CudaLinear
from minllm.ops.streams import NormedStream
from minllm.runtime.device import HOPPER
from minllm.weights.formats import plain_linear
from minllm.weights.linear import Linear


class CudaExperts(CudaLinear):
    """Part of CudaOps."""

    def experts(self, x: Array, router: Array, gate_up: Linear, down: Linear, routing: Routing) -> Array:
        """The weighted sum of each token's chosen experts: [T, hidden]."""
        return self._of_logits(x, self._matmul(x, plain_linear(router), np.dtype(np.float32)), gate_up, down, routing)

    def _of_logits(self, x: Array, logits: Array, gate_up: Linear, down: Linear, routing: Routing) -> Array:
        """The experts that the router's logits [T, experts] choose."""
        out = self.empty(x.shape, self.dtype)
        if self._gathers(x, gate_up, down):
            activated = self._activated(x, gate_up, routing)
            gate_up_gemv(x, logits, gate_up.weight, activated, stream=self.stream)
            down_gemv(activated, logits, routing.normalized, down.weight, out, stream=self.stream)
        else:
            combine(*self._outputs(x, logits, gate_up, down, routing), out, stream=self.stream)
        return out

    def normed_experts(
        self, x: Array, residual: Array, norm: NormWeights, router: Array, gate_up: Linear, down: Linear, routing: Routing,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Norm and experts: in three kernels if x is one row and no other rank adds to the result; (a NormedStream, None) of many."""
        if down.shard.ranks > 1:
            return super().normed_experts(x, residual, norm, router, gate_up, down, routing)
        to_logits = plain_linear(router)
        launcher = self._fused(to_logits.format.kernels.normed_linear, x, residual, to_logits, norm)
        if launcher is None:
            return self._experts_and_norm(*self._normed_logits(x, residual, norm, router), gate_up, down, routing, next_norm)
        fused: dict[str, Any] = dict(norm=norm.weight, epsilon=norm.epsilon)
        logits = self.empty((x.shape[0], routing.experts), np.float32)
        launcher(x, router, logits, None, self.stream, **fused)
        activated, out = self._activated(x, gate_up, routing), self.empty(x.shape, self.dtype)
        gate_up_gemv(x, logits, gate_up.weight, activated, **fused, stream=self.stream)
        down_gemv(activated, logits, routing.normalized, down.weight, out, x, self.stream)
        return out, None

    def _normed_logits(self, x: Array, residual: Array, norm: NormWeights, router: Array) -> tuple[Array, Array, Array]:
        """(normalised, residual, logits) of add_norm and the router, in one kernel if the stream is a DeferredNorm of a few tokens."""
        if not isinstance(x, DeferredNorm) or not fits_normed_router(x.stream, norm.weight, router):
            normalised, residual = self.add_norm(x, residual, norm)
            return normalised, residual, self._matmul(normalised, plain_linear(router), np.dtype(np.float32))
        normalised, logits = self.empty(x.shape, self.dtype), self.empty((x.shape[0], router.shape[0]), np.float32)
        normed_router(x.stream, norm.weight, router, normalised, logits, norm.epsilon, self.stream)
        return normalised, x.stream, logits

    def _experts_and_norm(
        self, x: Array, residual: Array, logits: Array, gate_up: Linear, down: Linear, routing: Routing, norm: NormWeights | None
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """The residual stream, as a pair, after adding the experts of x; with its norm if the kernel that adds them can compute it."""
        gathers = self._gathers(x, gate_up, down)
        if norm is None or norm.kind != "rms_norm" or "rms_norm" in self.own or gathers or not fits_combine_norm(residual, norm.weight):
            return self._of_logits(x, logits, gate_up, down, routing), residual
        outputs, weights = self._outputs(x, logits, gate_up, down, routing)
        normalised = self.empty(residual.shape, self.dtype)
        combine_norm(outputs, weights, residual, norm.weight, normalised, norm.epsilon, self.stream)
        return NormedStream(residual, normalised), None

    def _outputs(self, x: Array, logits: Array, gate_up: Linear, down: Linear, routing: Routing) -> tuple[Array, Array]:
        """(outputs [T * per_token, hidden], weights [T, per_token]) of each token's chosen experts, by grouped GEMMs."""
        weights, pairs, offsets = self._sorted(logits, routing)
        activated, outputs = self._activated(x, gate_up, routing), self.empty((pairs.size, x.shape[1]), self.dtype)
        if self.capability == HOPPER and gate_up.format.is_plain and takes(pairs.size, routing.experts):
            gather_rows(x, pairs, outputs, self.stream)  # the same shape, and free until the experts' outputs are written
            wgmma_gate_up(outputs, pairs, offsets, gate_up.weight, activated, self.stream)
            wgmma_down(activated, pairs, offsets, down.weight, outputs, self.stream)
        else:
            grouped_gate_up(x, pairs, offsets, gate_up.weight, activated, self.stream)
            grouped_down(activated, pairs, offsets, down.weight, outputs, self.stream)
        return outputs, weights

    def gated_add(self, x: Array, y: Array, gate: Array) -> Array:
        """x + sigmoid(gate) * y: [T, hidden]."""
        out = self.empty(x.shape, self.dtype)
        gated_add(x, y, gate, out, self.stream)
        return out

    def _sorted(self, logits: Array, routing: Routing) -> tuple[Array, Array, Array]:
        """(weights [T, per_token], pairs [T * per_token], offsets [experts + 1]) of the chosen experts."""
        shape = (logits.shape[0], routing.per_token)
        expert_ids, weights = self.empty(shape, np.int32), self.empty(shape, np.float32)
        route(logits, expert_ids, weights, routing.normalized, self.stream)
        pairs, offsets = self.empty((expert_ids.size,), np.int32), self.empty((routing.experts + 1,), np.int32)
        self._launcher("sort_by_expert", sort_by_expert)(expert_ids, pairs, offsets, stream=self.stream)
        return weights, pairs, offsets

    def _activated(self, x: Array, gate_up: Linear, routing: Routing) -> Array:
        """An array for gate and up of all pairs of a token and its expert, [T * per_token, intermediate]."""
        return self.empty((x.shape[0] * routing.per_token, gate_up.shape[0] // routing.experts // 2), self.dtype)

    def _gathers(self, x: Array, gate_up: Linear, down: Linear) -> bool:
        """Whether GEMVs compute the experts: for a few tokens, and for arrays that the grouped GEMM does not support."""
        few = x.shape[0] <= MOST_TOKENS and self.variants.get("matmul") != "fixed_order"
        return few or not fits(x, gate_up.weight, down.weight)
