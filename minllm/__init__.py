"""minllm: the LLM inference engine that you can read.

    from minllm import LLM, SamplingParams
    print(LLM().generate("def fibonacci(n):", SamplingParams(max_tokens=64))[0].outputs[0].text)

(PYTEST_DONT_REWRITE: its pytest plugin, minllm.sim.plugin, asserts nothing.)
"""

from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minllm import errors
    from minllm.engine.async_llm import AsyncLLM
    from minllm.engine.contrastive_search import ContrastiveSearchParams
    from minllm.engine.llm import LLM
    from minllm.engine.llm_engine import LLMEngine
    from minllm.engine.requests.beam_search_params import BeamSearchParams
    from minllm.engine.requests.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, RequestOutput
    from minllm.engine.requests.prompts import TextPrompt, TokensPrompt
    from minllm.engine.requests.sampling_params import SamplingParams
    from minllm.engine.requests.structured_outputs import StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ContrastiveSearchParams",
    "LLMEngine",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "errors",
    "held_out_text",
]

_HOMES = {
    "LLM": "minllm.engine.llm",
    "AsyncLLM": "minllm.engine.async_llm",
    "BeamSearchOutput": "minllm.engine.requests.outputs",
    "BeamSearchParams": "minllm.engine.requests.beam_search_params",
    "BeamSearchSequence": "minllm.engine.requests.outputs",
    "CompletionOutput": "minllm.engine.requests.outputs",
    "ContrastiveSearchParams": "minllm.engine.contrastive_search",
    "LLMEngine": "minllm.engine.llm_engine",
    "RequestOutput": "minllm.engine.requests.outputs",
    "SamplingParams": "minllm.engine.requests.sampling_params",
    "StructuredOutputsParams": "minllm.engine.requests.structured_outputs",
    "TextPrompt": "minllm.engine.requests.prompts",
    "TokensPrompt": "minllm.engine.requests.prompts",
}


def __getattr__(name: str):
    """Import a public name at its first use, so that `import minllm` stays fast."""
    if name == "errors":
        return import_module("minllm.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'minllm' has no attribute {name!r}")
    from minllm.machine.call_frames import with_room  # imports nest deeply too

    return getattr(with_room(import_module)(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def held_out_text() -> str:
    """About 200 KB of Python source that the bundled model was not trained on, for measuring its perplexity."""
    return files("minllm").joinpath("data/held_out.txt").read_text(encoding="utf-8")
