"""Embedding, argmax and logits for a vocabulary that is split over ranks in equal parts (parallel/tensor_parallel.py).

    lookup.py   embeddings of the tokens on this rank, zeros for the others; an all-reduce makes the embedding
    argmax.py   the token of the largest logit over all ranks
    join.py     joins the gathered parts of logits to rows
"""  # fmt: skip
