"""Build the RequestOutput that users see from the sequences of a request, one per completion."""

from collections.abc import Sequence as Many
from contextlib import suppress
from typing import Any

from minllm.engine.requests.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from minllm.engine.requests.sequence import Sequence


def output_of(sequences: Many[Sequence]) -> RequestOutput:
    """The output of a request so far, from its sequences in the order of its completions.

    With best_of, once all have ended, the n completions with the highest cumulative log-probability, best first. Another thread may append
    tokens meanwhile, so finish reasons are read first: a sequence that has one is complete.
    """
    first = sequences[0]
    chosen = [(sequence, sequence.finish_reason) for sequence in sequences]
    finished = all([reason is not None for _, reason in chosen])
    if len(sequences) > first.params.n:
        if finished:
            chosen.sort(key=lambda pair: -pair[0].cumulative_logprob)
        chosen = chosen[: first.params.n]
    return RequestOutput(
        request_id=first.request_id,
        prompt=first.prompt,
        prompt_token_ids=first.shown_prompt_token_ids,
        outputs=[completion_of(sequence, reason, index) for index, (sequence, reason) in enumerate(chosen)],
        finished=finished,
        metrics=metrics_of(sequences),
        num_cached_tokens=first.num_cached_tokens,
        prompt_logprobs=None if first.params.prompt_logprobs is None else list(first.prompt_logprobs),
        error=next((sequence.error for sequence in sequences if sequence.error is not None), None),
    )


def raise_failure(errors: list[Exception | None], outputs: list[Any]) -> None:
    """Raise the first error of a call's requests, if there is one; its attribute `outputs` holds the outputs of all.

    errors: one for each request, None for one that did not fail.
    """
    failed = [(index, error) for index, error in enumerate(errors) if error is not None]
    if not failed:
        return
    (first, error), *others = failed
    with suppress(Exception):  # the class of a user's error may refuse attributes
        attributed: Any = error
        attributed.outputs = outputs
        if len(outputs) > 1:
            more = f", and {len(others)} more" if others else ""
            error.add_note(f"Prompt {first} of {len(outputs)}, counted from 0, failed{more}: this error's `outputs` holds what all got.")
    raise error


def completion_of(sequence: Sequence, finish_reason: FinishReason | None, index: int = 0) -> CompletionOutput:
    """A completion so far, number `index` of its request."""
    wants_logprobs = sequence.params.logprobs is not None
    text, count = sequence.text_so_far()
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=sequence.output_token_ids[:count],
        cumulative_logprob=sequence.cumulative_logprob if sequence.needs_logprobs else None,
        logprobs=sequence.logprobs[:count] if wants_logprobs else None,
        finish_reason=finish_reason,
        stop_reason=None if finish_reason is None else sequence.stop_reason,
    )


def metrics_of(sequences: Many[Sequence]) -> RequestMetrics:
    """The times of a request so far, over all its completions."""
    begun = [sequence for sequence in sequences if sequence.output_token_ids]
    prompt_tokens, first = len(sequences[0].prompt_token_ids), sequences[0]
    queued = None if first.scheduled_time is None else first.scheduled_time - first.arrival_time
    if not begun:
        return RequestMetrics(prompt_tokens, 0, None, 0.0, None, queued)
    generated = sum([len(sequence.output_token_ids) for sequence in begun])
    first_token_time = min([sequence.first_token_time or 0.0 for sequence in begun])
    decode_seconds = max([sequence.last_token_time or 0.0 for sequence in begun]) - first_token_time
    return RequestMetrics(
        prompt_tokens=prompt_tokens,
        generated_tokens=generated,
        time_to_first_token=first_token_time - first.arrival_time,
        decode_seconds=decode_seconds,
        decode_tokens_per_second=(generated - len(begun)) / decode_seconds if decode_seconds > 0 else None,
        time_in_queue=queued,
    )
