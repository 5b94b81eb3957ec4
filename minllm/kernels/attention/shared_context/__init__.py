"""Attention of ranks that share contexts (parallel/context_parallel.py): the tokens that a rank caches, and the merge of outputs."""
