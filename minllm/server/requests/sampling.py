"""The fields that all endpoints that generate share: the parameters of sampling, and how the engine treats the request."""

from typing import Any

from pydantic import Field

from minllm.engine.requests.parameter_help import meanings
from minllm.engine.requests.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from minllm.server.errors import refused
from minllm.server.requests.body import ModelBody
from minllm.server.requests.structure import StructureFields, structure_of

MEANINGS = meanings(SamplingParams)
SHARED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "prompt_logprobs"),
    *("truncate_prompt_tokens", "skip_special_tokens", "include_stop_str_in_output"),
)


def parameter(name: str) -> Any:
    """The field of a parameter of SamplingParams; without it, the model's default holds."""
    return Field(None, description=MEANINGS.get(name))


class RequestFields(ModelBody):
    """How the engine treats a request, besides what it generates."""

    priority: int = Field(0, ge=-(2**63) + 1, le=2**63 - 1, description="Requests of a lower number run earlier.")
    deadline: float | None = Field(None, ge=0, description="Seconds after which the request ends with status 504.")
    cache_salt: str | None = Field(
        None, min_length=1, description="Only prompts with the same salt and the same API key share cached keys and values."
    )
    request_id: str | None = Field(None, description="Ignored: the id in the answer is the server's.")
    user: str | None = Field(None, description="Ignored.")


class SamplingFields(RequestFields, StructureFields):
    """The parameters that completions and chat completions share."""

    REFUSED = {
        "structural_tag": "not supported: describe the whole text",
        "use_beam_search": "false: the Python API has beam_search()",
        "logits_processors": "a field of the Python API alone",
        "prompt_embeds": "not supported: give a text or token ids",
    }

    temperature: float | None = parameter("temperature")
    top_p: float | None = parameter("top_p")
    top_k: int | None = parameter("top_k")
    min_p: float | None = parameter("min_p")
    repetition_penalty: float | None = parameter("repetition_penalty")
    presence_penalty: float | None = parameter("presence_penalty")
    frequency_penalty: float | None = parameter("frequency_penalty")
    logit_bias: dict[str, float] | None = parameter("logit_bias")
    allowed_token_ids: list[int] | None = parameter("allowed_token_ids")
    bad_words: list[str] | None = parameter("bad_words")
    seed: int | None = Field(None, description=f"{MEANINGS.get('seed')} A negative number counts from 2**64; -1 is none.")
    min_tokens: int | None = parameter("min_tokens")
    stop: str | list[str] | None = parameter("stop")
    stop_token_ids: list[int] | None = parameter("stop_token_ids")
    ignore_eos: bool | None = parameter("ignore_eos")
    skip_special_tokens: bool | None = parameter("skip_special_tokens")
    include_stop_str_in_output: bool | None = parameter("include_stop_str_in_output")
    prompt_logprobs: int | None = parameter("prompt_logprobs")
    truncate_prompt_tokens: int | None = parameter("truncate_prompt_tokens")
    n: int = Field(1, ge=1, description=MEANINGS.get("n"))
    stream: bool = Field(False, description="Send the text as server-sent events while it is generated.")
    stream_options: dict[str, Any] | None = Field(
        None, description="include_usage: a last chunk without choices holds the usage; continuous_usage_stats: every chunk holds it."
    )

    def sampling(self, defaults: dict[str, Any], **more: Any) -> SamplingParams:
        """The parameters over the model's defaults; more: further fields. Raises InvalidRequestError or ApiError."""
        if self.stream and self.prompt_logprobs is not None:
            raise refused(
                "prompt_logprobs", self.prompt_logprobs, "for an answer in one piece: leave out stream, or take echo and logprobs"
            )
        given = {name: value for name in SHARED if (value := getattr(self, name)) is not None}
        if given.get("seed", 0) < 0:
            given["seed"] = None if given["seed"] == -1 else given["seed"] % 2**64
        if "logit_bias" in given:  # clamped, as in vLLM's server
            given["logit_bias"] = {token: max(-MAX_LOGIT_BIAS, min(bias, MAX_LOGIT_BIAS)) for token, bias in given["logit_bias"].items()}
        return SamplingParams(**defaults | {"structured_outputs": structure_of(self)} | given | more)

    @property
    def shows_usage(self) -> bool:
        """Whether a streamed answer ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def shows_usage_always(self) -> bool:
        """Whether every chunk holds the usage so far."""
        return self.shows_usage and bool((self.stream_options or {}).get("continuous_usage_stats"))
