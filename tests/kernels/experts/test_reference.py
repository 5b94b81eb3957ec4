"""The equations of a mixture of experts against transformers' block, and the order of equal logits."""

import numpy as np
import pytest

from minllm.kernels.experts.reference import experts_reference, route_reference


@pytest.mark.parametrize("normalized", [True, False])
def test_the_block_of_transformers(normalized):
    import torch  # here and not above: 2 s, in every process that collects tests
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    torch.manual_seed(0)
    sizes = dict(hidden_size=24, moe_intermediate_size=10, num_experts=7, num_experts_per_tok=3, num_attention_heads=2)
    block = Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(**sizes, norm_topk_prob=normalized))
    for parameter in block.parameters():
        parameter.data.normal_(0, 0.3)
    x = torch.randn(1, 19, 24)
    with torch.no_grad():
        expected = block(x)[0].numpy()
    arrays = (x[0], block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj)
    x, router, gate_up, down = (one.detach().numpy() for one in arrays)
    found = experts_reference(x, *route_reference(x @ router.T, 3, normalized), gate_up, down)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_equal_logits_and_nan_give_distinct_experts():
    logits = np.array([[1, 3, 3, 1], [np.nan] * 4, [np.nan, -np.inf, 2, np.nan]], np.float32)
    expert_ids, weights = route_reference(logits, 3, True)
    np.testing.assert_array_equal(expert_ids, [[1, 2, 0], [0, 1, 2], [2, 0, 1]])
    assert weights[0, 0] == weights[0, 1] > weights[0, 2]
