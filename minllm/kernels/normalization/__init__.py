"""Normalisation of each token's vector, with the addition of the residual fused in."""
