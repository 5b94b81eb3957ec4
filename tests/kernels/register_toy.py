"""A pytest plugin, `-p tests.kernels.register_toy`: registers toy_attention.py."""

from minllm.kernels.attention import VARIANTS
from minllm.kernels.variants import Variant

VARIANTS.register(Variant("toy", "tests.kernels.toy_attention"))
