"""The algorithm that lessons run and engines do not: a ring."""
