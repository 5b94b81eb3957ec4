"""LLM: load a model, generate text, score text. The class that users call; its interface is vLLM's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minllm.engine.build.engine import Engine, load_engine
from minllm.engine.build.memory_budget import check_logits_fit, naming_memory_options
from minllm.engine.contrastive_search import ContrastiveSearch, ContrastiveSearchParams
from minllm.engine.llm_engine import LLMEngine
from minllm.engine.option_help import check_names, shows_options
from minllm.engine.options import EngineOptions
from minllm.engine.progress import Progress, check_progress, progress_bars, request_bar
from minllm.engine.ranks.launched import called_on_all_ranks
from minllm.engine.ranks.rank_runner import LeadingRunner
from minllm.engine.ranks.start import load_ranks
from minllm.engine.requests.beam_search import Beam
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.engine.requests.chat_prompts import ChatOptions, chat_prompt
from minllm.engine.requests.completions import output_of, raise_failure
from minllm.engine.requests.default_params import default_sampling_params, warn_of_the_rest
from minllm.engine.requests.outputs import BeamSearchOutput, RequestOutput
from minllm.engine.requests.prompts import Prompt, TokensPrompt, checked_salts, checked_token_ids, naming_the_prompt
from minllm.engine.requests.requests import make_beams, make_sequences
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.requests.text_stream import TextStream
from minllm.engine.scoring import Scorer, check_window
from minllm.engine.turn import NotCopied, in_turn
from minllm.engine.warm_up import warm_up
from minllm.errors import EngineBusyError, InvalidRequestError
from minllm.models.conversation import is_one_conversation


@shows_options
class LLM(NotCopied):
    """A language model on this machine.

    options: the fields of EngineOptions, which gives their types, defaults and meanings. progress: True shows bars on standard error while
    loading; or a function of (task, done, total).

    Raises InvalidOptionError, CheckpointError, UnsupportedModelError, DeviceError or OutOfMemoryError. Several streams can be open at a
    time, and a call of generate computes their tokens too. One thread at a time can use an LLM, in the process that made it: in others,
    every call raises EngineBusyError at once, also while another thread reads a stream. AsyncLLM takes any number of threads.
    """

    def __init__(self, model: str | Path | None = None, *, progress: bool | Progress = False, **options: Any):
        check_names(options)
        self.options = EngineOptions(model=model, **options)
        check_progress(progress)
        with progress_bars(progress) as report:
            load = load_ranks if self.options.num_ranks > 1 or self.options.is_launched else load_engine
            with naming_memory_options(self.options):
                self._engine: Engine | None = load(self.options, report)
            engine = self._engine
            self.options = engine.options  # with the limits of a step, if they were not given
            self._default_params = default_sampling_params(engine.generation_config, engine.model.config.vocab_size)
            warn_of_the_rest(engine.generation_config, engine.model.config.max_position_embeddings)
            self.llm_engine = LLMEngine(engine, self._default_params, self.options.seed)
            if engine.device == "cuda":
                self._warm_up(progress=report)

    @property
    def engine(self) -> Engine:
        """The loaded parts: device, ops, model, cache, runner. Raises EngineBusyError after close()."""
        if self._engine is None:
            raise EngineBusyError("This LLM was closed: make a new one.")
        return self._engine

    @property
    def tokenizer(self):
        """encode(text) -> list[int], decode(token_ids) -> str."""
        return self.engine.tokenizer

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return self.engine.device

    @property
    def max_model_len(self) -> int:
        """The maximum number of tokens of prompt and output together."""
        return self.engine.max_model_len

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests that give none: what the model's files suggest, or default_params.UNSUGGESTED."""
        return self._default_params

    @in_turn
    @called_on_all_ranks
    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        cache_salt: str | list[str | None] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Continues one prompt or many; the outputs are in the order of the prompts.

        prompts: one prompt or a list of them, each a string, a list of token ids, or a dictionary with "prompt" or "prompt_token_ids" and
        optionally "cache_salt". sampling_params: one for all prompts, one for each, or None for the model's defaults. cache_salt: one for
        all prompts, or one for each; with enable_prefix_caching, only prompts with the same salt, or without any, share cached keys and
        values. Give each of your tenants a secret salt: without one, the time that a prompt takes reveals whether another tenant has sent
        it (vLLM's documentation, "Automatic Prefix Caching", Cache Isolation for Security). use_tqdm: show a bar of the prompts that are
        done, if there are several and standard error is a terminal; or a function that makes one, such as tqdm.tqdm.

        If one request of a call is invalid, the whole call is refused before anything is computed: InvalidRequestError says which prompt
        is at fault, OutOfMemoryError that a prompt can never fit the cache. A refused call changes nothing for later ones.

        If a request fails later, for example because a logits processor raises an error, the others go on. Then the first error is raised,
        and its attribute `outputs` holds the outputs of all requests, with RequestOutput.error set for those that failed.
        """
        return self._run(self._requests(prompts, sampling_params, cache_salt), self.llm_engine.output_of, use_tqdm)

    @in_turn
    @called_on_all_ranks
    def beam_search(
        self,
        prompts: Prompt | list[Prompt],
        params: BeamSearchParams | list[BeamSearchParams],
        *,
        cache_salt: str | list[str | None] | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations that beam search finds for each prompt, best first; the outputs are in the order of the prompts.

        prompts and cache_salt: as in generate(). params: one for all prompts, or one for each. All searches run at the same time, and
        beside open streams; the beams of a search share the cache blocks of their common tokens.
        """
        return self._run(self._requests(prompts, params, cache_salt, BeamSearchParams), self._beams_of)

    @in_turn
    def contrastive_search(
        self, prompts: Prompt | list[Prompt], params: ContrastiveSearchParams | None = None
    ) -> list[RequestOutput]:  # fmt: skip
        """Continues each prompt by contrastive search, one prompt at a time: slow, see engine/contrastive_search.py.

        prompts: as in generate(). params: one for all prompts, or None for the defaults.
        """
        params = ContrastiveSearchParams() if params is None else params
        if not isinstance(params, ContrastiveSearchParams):
            raise InvalidRequestError(f"{params!r} is not a ContrastiveSearchParams: write ContrastiveSearchParams(max_tokens=...).")
        requests, engine = self._requests(prompts, params.request()), self.engine
        if engine.processes is not None:
            raise InvalidRequestError("contrastive_search() runs on one rank: make an LLM with tensor_parallel_size=1.")
        search = ContrastiveSearch(engine.ops, engine.model, engine.cache, engine.cache_policy, self.options.max_num_batched_tokens)
        for [sequence] in requests:
            search.run(sequence, params)
        return [output_of(sequences) for sequences in requests]

    @in_turn
    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, cache_salt: str | None = None) -> TextStream:
        """Continues one prompt and yields its text piece by piece: `for piece in llm.stream("text"): print(piece, end="")`.

        The prompt is checked at once, and computed when the first piece is read.

        prompt: a string, a list of token ids, or a dictionary, as in generate(). sampling_params: one, with n=1, or None for the model's
        defaults. cache_salt: as in generate().
        """
        if self.engine.program is not None:
            raise InvalidRequestError("stream() runs on ranks that this LLM has started: use generate() with external_launcher.")
        requests = self._requests(prompt, sampling_params, cache_salt)
        if len(requests) != 1:
            raise InvalidRequestError(f"stream() takes one prompt and {len(requests)} were given: use generate() for several.")
        if len(requests[0]) != 1:
            name = "n" if requests[0][0].params.best_of is None else "best_of"
            raise InvalidRequestError(f"stream() gives one completion and {name}={len(requests[0])} were asked for: use generate().")
        return TextStream(requests[0][0], self.llm_engine.core)

    @in_turn
    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        cache_salt: str | list[str | None] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """The model's reply to a conversation, or to each of several; the outputs are in the order of the conversations.

        messages: a conversation, [{"role": "user", "content": "..."}, ...], or a list of them. chat_template: a Jinja template that turns
        a conversation into a prompt, or the name of one of the model's; None takes the model's "tool_use" if there are tools, else its
        default. add_generation_prompt: end the prompt with the beginning of the assistant's message. continue_final_message: instead end
        it with the text of the final message, which the model continues; this needs add_generation_prompt=False. tools: descriptions of
        functions, for templates that read them. chat_template_kwargs: more variables for the template. sampling_params, cache_salt and
        use_tqdm: as in generate().
        """
        options = ChatOptions(chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        prompts = self._chat_tokens(messages, options, sampling_params)
        return self.generate(prompts, sampling_params, cache_salt=cache_salt, use_tqdm=use_tqdm)

    @in_turn
    def stream_chat(
        self,
        messages: list[dict[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> TextStream:
        """Like chat() for one conversation, but yields the reply piece by piece, as stream() does.

        messages: a conversation, [{"role": "user", "content": "..."}, ...].
        """
        options = ChatOptions(chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self.stream(self._chat_tokens(messages, options, sampling_params), sampling_params, cache_salt=cache_salt)

    @in_turn
    @called_on_all_ranks
    def logits(self, token_ids: list[int]) -> np.ndarray:
        """The logits at every position of a text, float32 [tokens, vocab]: row i scores what comes after token i.

        They are returned as they are computed, NaN and infinity included.

        token_ids: the text's tokens, at least one, and at most max_model_len.
        """
        token_ids = self._scored_tokens(token_ids)
        check_logits_fit(len(token_ids), self.engine.model.config.vocab_size)
        return np.concatenate(list(self._scorer().logits(token_ids)))

    @in_turn
    @called_on_all_ranks
    def perplexity(self, token_ids: list[int], window: int = 1024, stride: int = 512) -> float:
        """exp of the mean negative log-likelihood of a text's tokens after the first; the text may exceed the model's context.

        token_ids: the text's tokens, at least two. window: tokens that the model reads at a time; its context if that is shorter.
        stride: tokens from the start of one window to the start of the next; at most half of the window if that had to be shortened.

        Every token is counted once, with at least window - stride tokens of context except in the first window. Raises SamplingError
        if the logits hold NaN or infinity.
        """
        token_ids = checked_token_ids(token_ids, self.engine.model.config.vocab_size)
        if len(token_ids) < 2:
            raise InvalidRequestError("Perplexity needs at least 2 tokens: the first has nothing before it that could predict it.")
        check_window(window, stride)
        if window > self.max_model_len:
            window, stride = self.max_model_len, max(1, min(stride, self.max_model_len // 2))
        return self._scorer().perplexity(token_ids, window, stride)

    def close(self) -> None:
        """Frees the model and its cache. Calling it again, or in a forked process, does nothing. Raises EngineBusyError during a call."""
        if self._engine is not None and self.llm_engine.core.turn.is_here:
            with self.llm_engine.core.turn as turn:
                self.llm_engine.abort_all()
                turn.close()
                self._engine.close()
        closed: Any = None
        self._engine = self.llm_engine = closed

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @called_on_all_ranks
    def _warm_up(self, *, progress: Progress | None) -> None:
        warm_up(self.generate, self.engine.runner, self._default_params, self.engine.max_model_len, progress)
        self.llm_engine.forget_history()

    def _scorer(self) -> Scorer:
        engine = self.engine
        score = engine.runner.score if engine.processes is not None and isinstance(engine.runner, LeadingRunner) else None
        return Scorer(engine.ops, engine.model, engine.cache, engine.cache_policy, self.options.max_num_batched_tokens, score)

    def _scored_tokens(self, token_ids: list[int]) -> list[int]:
        token_ids = checked_token_ids(token_ids, self.engine.model.config.vocab_size)
        if len(token_ids) > self.max_model_len:
            raise InvalidRequestError(f"{len(token_ids)} tokens are more than max_model_len={self.max_model_len}: give fewer.")
        return token_ids

    def _run(self, requests: list[list[Sequence]], output_of: Callable[[list[Any]], Any], use_tqdm: object = False) -> list[Any]:
        """Run checked requests until they end; returns the output of each. If some failed, raises as generate() does."""
        core = self.llm_engine.core
        with request_bar(use_tqdm, len(requests)) as show:
            for sequences in requests:
                core.add(sequences[0])
            every = [sequence for sequences in requests for sequence in sequences]
            core.finish(every, show and (lambda: show(sum(all(one.is_finished for one in sequences) for sequences in requests))))
        outputs = [output_of(sequences) for sequences in requests]
        errors = [next((one.error or one.fault for one in sequences if one.error or one.fault), None) for sequences in requests]
        raise_failure(errors, outputs)
        return outputs

    def _beams_of(self, beams: list[Beam]) -> BeamSearchOutput | None:
        """The output of a beam search that has ended; None if its texts cannot be made."""
        with beams[0].at_fault():
            return beams[0].search.output(self.tokenizer)

    def _requests(
        self, prompts: object, params: object = None, cache_salt: object = None, kind: type = SamplingParams
    ) -> list[list[Sequence]]:  # fmt: skip
        """The sequences of each prompt, after checking a call's prompts, parameters and salts. Nothing is reserved yet."""
        self.engine  # noqa: B018 - raises if this LLM was closed
        parsed = self.llm_engine.parse(prompts, self._listed(params))
        params = self._params_for(len(parsed), params, kind)
        salts = checked_salts(cache_salt, parsed)
        make = make_beams if kind is BeamSearchParams else make_sequences
        return self.llm_engine.make_requests(list(zip(parsed, params, salts, strict=True)), make=make)

    def _chat_tokens(self, messages: Any, options: ChatOptions, params: object) -> list[TokensPrompt]:
        """The prompt of each conversation."""
        longest = self.llm_engine.longest_prompt(self._listed(params))
        conversations = [messages] if is_one_conversation(messages) else messages
        prompts = []
        for index, conversation in enumerate(conversations):
            with naming_the_prompt(index, len(conversations)):
                prompts.append(chat_prompt(conversation, options, self.tokenizer, longest))
        return prompts

    def _listed(self, params: object) -> list[Any]:
        """The parameters that a call was given, in a list."""
        given = self._default_params if params is None else params
        return list(given) if isinstance(given, list | tuple) else [given]

    def _params_for(self, count: int, given: object, kind: type) -> list[Any]:
        """The parameters of each request, of the class `kind`."""
        if given is None and kind is SamplingParams:
            given = self._default_params
        many = list(given) if isinstance(given, list | tuple) else [given] * count
        if len(many) != count:
            raise InvalidRequestError(f"{len(many)} {kind.__name__} were given for {count} prompts: give one for all, or one for each.")
        first = "temperature=..." if kind is SamplingParams else "beam_width=..."
        for params in many:
            if not isinstance(params, kind):
                raise InvalidRequestError(f"{params!r} is not a {kind.__name__}: write {kind.__name__}({first}, max_tokens=...).")
        return many
