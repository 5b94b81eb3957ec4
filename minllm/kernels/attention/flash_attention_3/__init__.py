"""FlashAttention-3: TMA, wgmma and softmax run at the same time, on Hopper."""
