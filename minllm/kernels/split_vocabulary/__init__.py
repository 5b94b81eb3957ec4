"""Embedding, argmax and logits of a vocabulary that several ranks hold in equal parts (parallel/tensor_parallel.py).

    lookup.py   the tokens that a rank holds, zeros for the others: an all-reduce makes the embedding of it
    argmax.py   the best of all ranks' largest logits
    join.py     gathered parts of logits side by side
"""
