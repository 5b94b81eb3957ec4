"""Attention, float32 products and GEMVs with small tiles, for tests of other things in the simulator.

Few tokens would use a corner of a GPU's tiles. What a test of a forward is about, the order of the operations and the arrays that they
share, is the same with both. tests/kernels compares the kernels with many shapes of tiles, and tests/bench launches each of them with those
that it chooses.
"""

from minllm.kernels.attention.flash_attention_2 import flash_attention_2, float32, quantized
from minllm.kernels.attention.tree import tree
from minllm.kernels.matmul import vectorized
from minllm.kernels.matmul.gemv import gemv, gemv_qkv
from minllm.kernels.matmul.gemv.sums import GemvTiling


def use_small_tiles(monkeypatch):
    """Let the launchers choose tiles of 16 rows and 16 keys, or 8 rows in float32, and few warps, until `monkeypatch` ends."""
    choices = (flash_attention_2, "tiles_for"), (flash_attention_2, "small_tiles"), (quantized, "tiles_for")
    for module, name in choices:
        monkeypatch.setattr(module, name, lambda *_: (16, 16, 1))
    monkeypatch.setattr(float32, "tiles_for", lambda _: (4, 8, 2, 2))
    for module, name in ((gemv, "choose_tiling"), (gemv_qkv, "choose_qkv_tiling")):
        monkeypatch.setattr(module, name, lambda *_: GemvTiling(rows=4, warps=2, unroll=1, splits=2))
    monkeypatch.setattr(vectorized, "choose_tile", lambda *_: 16)
    monkeypatch.setattr(tree, "make_kernel", tree.make_kernel.__wrapped__)  # its cache is shared with other tests
