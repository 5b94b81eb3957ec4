"""The prompt of a conversation, through the model's chat template."""

from dataclasses import dataclass
from typing import Any

from minllm.engine.requests.prompts import TokensPrompt, check_chars


@dataclass(frozen=True)
class ChatOptions:
    """How a template renders a conversation: see LLM.chat."""

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] | None = None


def chat_prompt(messages: object, options: ChatOptions, tokenizer, max_model_len: int | None) -> TokensPrompt:
    """The text and token ids of a conversation; the template itself writes the tokens that begin a text. Raises InvalidRequestError.

    max_model_len: as in check_chars.
    """
    text = tokenizer.apply_chat_template(messages, **vars(options))
    check_chars(text, tokenizer.most_chars_per_token, max_model_len)
    return TokensPrompt(prompt=text, prompt_token_ids=tokenizer.encode(text, add_special_tokens=False))
