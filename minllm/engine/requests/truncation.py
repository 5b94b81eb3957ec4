"""truncate_prompt_tokens: a prompt without its beginning, and with the special tokens around it.

Text is cut from the left, as by transformers with truncation_side="left": the tokens that the tokenizer puts before and after a text, such
as BOS, count towards the length and stay. So does a BOS that a chat template or the caller has written.
"""

from minllm.engine.requests.prompts import PromptTokens
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import InvalidRequestError, shown
from minllm.models.tokenizer import Tokenizer


def truncated(prompt: PromptTokens, params: SamplingParams, max_model_len: int, tokenizer: Tokenizer) -> PromptTokens:
    """The prompt with at most truncate_prompt_tokens tokens; its text stays whole, as given.

    -1 is the length that leaves room for max_tokens in max_model_len, or for one token if max_tokens is None. Raises InvalidRequestError
    if the special tokens alone take more; if they take all, nothing of the text is left.
    """
    length, token_ids = params.truncate_prompt_tokens, prompt.token_ids
    if length == -1:
        length = max_model_len - (1 if params.max_tokens is None else params.max_tokens)
    if length is None or len(token_ids) <= length:
        return prompt
    before, after = _special_tokens_around(token_ids, tokenizer)
    num_kept = length - len(before) - len(after)
    if num_kept < 0 or length < 1:
        raise InvalidRequestError(
            f"truncate_prompt_tokens={shown(params.truncate_prompt_tokens)} with max_tokens={shown(params.max_tokens)} leaves {length} "
            f"tokens of max_model_len={max_model_len} for the prompt, too few for its {len(before) + len(after)} special tokens and a "
            "text: raise truncate_prompt_tokens, or lower max_tokens."
        )
    end = len(token_ids) - len(after)
    return prompt._replace(token_ids=before + token_ids[end - num_kept : end] + after)


def _special_tokens_around(token_ids: list[int], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens with which a prompt begins and ends, of those that the tokenizer adds to a text, or BOS."""
    text, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    first = next(i for i in range(len(whole) - len(text) + 1) if whole[i : i + len(text)] == text)
    before, after = whole[:first], whole[first + len(text) :]
    if token_ids[: len(before)] != before or not before:
        bos = tokenizer.bos_token_id
        before = [bos] if bos is not None and token_ids[0] == bos else []
    return before, after if after and token_ids[-len(after) :] == after else []
