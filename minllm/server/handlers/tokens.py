"""POST /tokenize and POST /detokenize."""

from minllm.server.endpoint import Reply
from minllm.server.errors import ApiError
from minllm.server.requests.tokens import DetokenizeBody, TokenizeBody
from minllm.server.server import Server


async def tokenize(server: Server, body: TokenizeBody, who: str) -> Reply:
    """The token ids of a text or of a conversation."""
    server.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("Give one of prompt and messages.", "prompt")
    chat = None
    if body.messages is not None:
        chat = {
            "messages": body.messages, "tools": body.tools, "continue_final_message": body.continue_final_message,
            "add_generation_prompt": body.add_generation_prompt and not body.continue_final_message,
            "template_kwargs": body.chat_template_kwargs,
        }  # fmt: skip
    special = chat is None if body.add_special_tokens is None else body.add_special_tokens
    server.engine.check_alive()
    found = await server.engine.client.call("tokenize", body.prompt, chat, special, body.return_token_strs)
    ids = found["token_ids"]
    return Reply({"count": len(ids), "max_model_len": server.card["max_model_len"], "tokens": ids, "token_strs": found["texts"]})


async def detokenize(server: Server, body: DetokenizeBody, who: str) -> Reply:
    """The text of token ids."""
    server.check_model(body.model)
    server.engine.check_alive()
    return Reply({"prompt": await server.engine.client.call("detokenize", body.tokens)})
