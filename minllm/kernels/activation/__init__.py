"""The element-wise nonlinearities between the two GEMMs of a feed-forward layer."""
