"""The parameters of requests that give none: what a model's authors suggest, and defaults for models without suggestions."""

import warnings

from minllm.engine.requests.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models.generation_config import GenerationConfig

# For files that suggest no sampling: llama.cpp's defaults (common/common.h). Drawn from the whole distribution, as vLLM does then, texts of
# small or quantised models wander into other languages.
UNSUGGESTED = dict(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
DRAWING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def default_sampling_params(config: GenerationConfig, vocab_size: int) -> SamplingParams:
    """The parameters of a request that gives none: the model's suggestions over the defaults of SamplingParams.

    `do_sample: false` means greedy decoding, temperature 0 here. A suppressed token gets a logit bias of -100. Token ids beyond the
    vocabulary are ignored. Raises CheckpointError for a value out of bounds.
    """
    values = {name: value for name in DRAWING if (value := getattr(config, name)) is not None}
    if not config.suggests_sampling:
        values |= UNSUGGESTED
    if config.do_sample is False:
        values["temperature"] = 0.0
    if config.max_new_tokens is not None:
        values["max_tokens"] = config.max_new_tokens
    if _fits(config):
        values["min_tokens"] = config.min_new_tokens or 0
    biases = {token_id: max(-MAX_LOGIT_BIAS, min(bias, MAX_LOGIT_BIAS)) for token_id, bias in config.token_biases}
    biases |= dict.fromkeys(config.suppress_tokens, -MAX_LOGIT_BIAS)
    biases = {token_id: bias for token_id, bias in biases.items() if token_id < vocab_size}
    try:
        return SamplingParams(**values, stop=config.stop_strings or None, logit_bias=biases or None)
    except InvalidRequestError as error:
        raise CheckpointError(f"{config.source} holds a value that cannot be used: {error}") from error


def warn_of_the_rest(config: GenerationConfig, context: int) -> None:
    """Name the suggestions that default_sampling_params does not follow, if there are any, in one UserWarning.

    context: the most tokens that the model can read; a max_length of at least that is no limit.
    """
    ignored = [*config.not_followed]
    if not _fits(config):
        ignored.append(f"min_new_tokens={config.min_new_tokens}, above max_new_tokens")
    if config.max_new_tokens is None and config.max_length is not None and config.max_length < context:
        ignored.append(f"max_length={config.max_length}")
    if ignored:
        warnings.warn(
            f"{config.source} sets {', '.join(ignored)}, which minllm does not follow: texts may differ from those of engines that do. "
            "Take these keys out of the file if that is fine.",
            stacklevel=3,
        )


def _fits(config: GenerationConfig) -> bool:
    """Whether min_new_tokens is not above the default of max_tokens."""
    return (config.min_new_tokens or 0) <= (config.max_new_tokens or SamplingParams.max_tokens or 0)


def described(params: SamplingParams, config: GenerationConfig) -> str:
    """How tokens are drawn, in a few words, and whether these are the defaults for models that suggest nothing."""
    if params.is_greedy:
        return "greedy"
    changed = [name for name in DRAWING if name == "temperature" or getattr(params, name) != getattr(SamplingParams, name)]
    words = ", ".join(f"{name} {getattr(params, name):g}" for name in changed)
    is_default = not config.suggests_sampling and all(getattr(params, name) == value for name, value in UNSUGGESTED.items())
    return words + (" (minllm's defaults, as the model's files suggest none)" if is_default else "")
