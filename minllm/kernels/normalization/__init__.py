"""Normalisation of each token's vector, fused with the residual addition."""
