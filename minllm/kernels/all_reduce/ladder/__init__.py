"""The algorithms that lessons run and engines do not: a ring, and low_latency with the norm that follows."""
