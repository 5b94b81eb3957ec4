"""A linear layer of the forward pass: the weight in the arrays of its format, its bias and its shard."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minllm.weights.shard import WHOLE, Shard

if TYPE_CHECKING:
    from minllm.weights.format import WeightFormat


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x @ weight.T + bias. The bias is plain, in the dtype of the activations."""

    weight: Any  # an array [outputs, inputs], or the format's NamedTuple of arrays
    bias: Any  # [outputs]
    format: "WeightFormat"
    shape: tuple[int, int]  # (outputs, inputs) of this shard
    shard: Shard = WHOLE
