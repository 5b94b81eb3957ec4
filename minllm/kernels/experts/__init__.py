"""Mixture of experts: a router chooses a few of many feed-forwards for each token, and only these are computed and read."""
