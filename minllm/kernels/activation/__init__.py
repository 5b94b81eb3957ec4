"""The elementwise nonlinearities between the two matrix products of a feed-forward layer."""
