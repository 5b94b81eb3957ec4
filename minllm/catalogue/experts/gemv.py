"""The GEMVs of experts for few tokens, which read the weights of each token's experts."""

import numpy as np

from minllm.catalogue.experts.arrays import EPSILON, bytes_of_code, numbers_of, router_logits, stacked, touched_by
from minllm.catalogue.launch import Launch, Moved, calls, describes
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.arguments import ceil_div
from minllm.kernels.experts.gather_gemv import FEATURES, down_gemv, gate_up_gemv
from minllm.kernels.experts.reference import activated_reference, combine_reference, projected_reference, route_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference


@describes
def gathered_gate_up(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, norm=False, special=False, form=""):
    """Gate and up of each token's experts, by a GEMV per pair. norm: of the RMSNorm of x; form: the weights' format."""
    b, pairs, name = dtype.itemsize, tokens * chosen, "gate_up.codes" if form else "gate_up"
    of_feature, features = int(2 * hidden * bytes_of_code(form, dtype)), 1 if form else FEATURES
    of_expert, warps = inner * of_feature, pairs * ceil_div(inner, features)  # warps that read: the last of a pair may read a feature twice

    def moved(logits, **arrays):
        asked = {"x": warps * hidden * b, name: warps * features * of_feature, "out": pairs * inner * b}
        touched = {"x": tokens * hidden * b, name: touched_by(logits, chosen) * of_expert}
        asked, touched = (asked | dict(norm=asked["x"]), touched | dict(norm=hidden * b)) if norm else (asked, touched)
        return dict(gate_up_gemv_kernel=Moved(asked, touched)) if hidden * b % 16 == 0 else {}

    def arrays(noise):
        return dict(
            x=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype) if norm else None,
            logits=router_logits(noise, tokens, experts, special),
            gate_up=stacked(noise, experts * 2 * inner, hidden, dtype, form), out=noise.unwritten((pairs, inner), dtype),
        )  # fmt: skip

    def reference(x, norm, logits, gate_up, out):
        if norm is not None:
            x = rms_norm_reference(x.astype(np.float32), norm.astype(np.float32), EPSILON)[0]
        expert_ids, _ = route_reference(logits, chosen, True)
        rows, stack = np.repeat(x, chosen, axis=0), numbers_of(gate_up, form).reshape(experts, -1, hidden)
        return dict(out=activated_reference(rows, expert_ids.reshape(-1), stack).astype(dtype))

    indices = ("logits", "gate_up.scales")
    return Launch(arrays, call=calls(gate_up_gemv, epsilon=EPSILON), reference=reference, moved=moved, indices=indices)


@describes
def gathered_down(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, residual=False, normalized=True, form=""):
    """The weighted sum of each token's experts, by a GEMV per token. form: the weights' format."""
    b, pairs, name = dtype.itemsize, tokens * chosen, "down.codes" if form else "down"
    of_expert = int(hidden * inner * bytes_of_code(form, dtype))

    def arrays(noise):
        return dict(
            activated=noise.array((pairs, inner), dtype), logits=router_logits(noise, tokens, experts),
            down=stacked(noise, experts * hidden, inner, dtype, form),
            residual=noise.array((tokens, hidden), dtype) if residual else None, out=noise.unwritten((tokens, hidden), dtype),
        )  # fmt: skip

    def reference(activated, logits, down, residual, out):
        expert_ids, weights = route_reference(logits, chosen, normalized)
        outputs = projected_reference(activated, expert_ids.reshape(-1), numbers_of(down, form).reshape(experts, hidden, inner))
        return dict(out=combine_reference(outputs, weights, residual).astype(dtype))

    def moved(logits, **arrays):
        asked = {"activated": pairs * hidden * inner * b, name: pairs * of_expert, "out": tokens * hidden * b}
        asked |= dict(residual=tokens * hidden * b) if residual else {}
        touched = {"activated": pairs * inner * b, name: touched_by(logits, chosen) * of_expert}
        return dict(down_gemv_kernel=Moved(asked, touched)) if inner * b % 16 == 0 else {}

    indices = ("logits", "down.scales")
    return Launch(arrays, call=calls(down_gemv, normalized=normalized), reference=reference, moved=moved, indices=indices)
