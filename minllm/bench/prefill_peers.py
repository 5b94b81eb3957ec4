"""Time of PyTorch's best kernels for the GEMMs and the attention of a whole prefill, with nothing between them.

cuBLAS multiplies by the model's own weights, layer after layer, and cuDNN computes attention on noise of the right shape.
"""

import statistics
from collections.abc import Callable
from typing import Any

from minllm.bench.random_model import RandomModel
from minllm.models.layout import Layer
from minllm.weights.linear import Linear

REPEATS, WARM_UP = 7, 2


def prefill_seconds(random_model: RandomModel, tokens: int, peers: Any) -> float:
    """Seconds of all GEMMs and the attention of all layers for one prompt of `tokens`.

    peers: the module torch_peers.
    """
    torch, config, layers = peers.torch, random_model.config, random_model.model.weights.layers
    clock = peers.TorchClock()

    def noise(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def seconds(call: Callable[[], Any]) -> float:
        return statistics.median(clock.seconds([call] * (WARM_UP + REPEATS))[WARM_UP:])

    total = 0.0
    for linears in zip(*(linears_of(layer) for layer in layers), strict=True):
        weights = [peers.as_torch(linear.weight) for linear in linears]
        x = noise(tokens, weights[0].shape[1])
        total += seconds(lambda x=x, weights=weights: [peers.linear(x, weight) for weight in weights])
    head = peers.as_torch(random_model.model.weights.lm_head.weight)
    last = noise(1, head.shape[1])
    total += seconds(lambda: peers.linear(last, head))
    query = noise(1, config.num_attention_heads, tokens, config.head_dim)
    key, value = (noise(1, config.num_key_value_heads, tokens, config.head_dim) for _ in range(2))

    def attend() -> None:
        with peers.sdpa_kernel(peers.SDPBackend.CUDNN_ATTENTION):
            for _ in layers:
                peers.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return total + seconds(attend)


def linears_of(layer: Layer) -> list[Linear]:
    """The Linears of a layer, in the order of the fields of its parts."""
    return [value for part in (layer.attention, layer.mlp) for value in vars(part).values() if isinstance(value, Linear)]
