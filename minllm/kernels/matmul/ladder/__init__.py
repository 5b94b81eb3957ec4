"""The rungs that lessons run and engines do not: a thread per output, tiles, Hopper's first two, and two GEMVs."""
