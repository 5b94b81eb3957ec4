"""How well a model predicts a text, in a unit that does not depend on its tokenizer."""

import math


def bits_per_byte(llm, text):
    """Bits for each byte of `text` under the model, by LLM.perplexity with its default window of 1,024 tokens and stride of 512."""
    token_ids = llm.tokenizer.encode(text)
    return math.log2(llm.perplexity(token_ids)) * (len(token_ids) - 1) / len(text.encode())
