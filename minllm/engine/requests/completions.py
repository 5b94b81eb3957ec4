"""Build the RequestOutput that users see from the sequences of a request, one per completion."""

from collections.abc import Sequence as Many

from minllm.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from minllm.engine.requests.sequence import Sequence


def output_of(sequences: Many[Sequence]) -> RequestOutput:
    """The output of a request so far; its sequences in the order of their completions.

    With best_of, the n completions of the highest cumulative log-probability, the best first, once all have ended.
    """
    first = sequences[0]
    chosen = list(sequences)
    if len(sequences) > first.params.n:
        if all(sequence.is_finished for sequence in sequences):
            chosen.sort(key=lambda sequence: -sequence.cumulative_logprob)
        chosen = chosen[: first.params.n]
    return RequestOutput(
        request_id=first.request_id,
        prompt=first.prompt,
        prompt_token_ids=list(first.prompt_token_ids),
        outputs=[completion_of(sequence, index) for index, sequence in enumerate(chosen)],
        finished=all(sequence.is_finished for sequence in sequences),
        metrics=metrics_of(sequences),
        num_cached_tokens=first.num_cached_tokens,
        prompt_logprobs=None if first.params.prompt_logprobs is None else list(first.prompt_logprobs),
        error=next((sequence.error for sequence in sequences if sequence.error is not None), None),
    )


def completion_of(sequence: Sequence, index: int = 0) -> CompletionOutput:
    """One completion so far, as number `index` of its request."""
    wants_logprobs = sequence.params.logprobs is not None
    return CompletionOutput(
        index=index,
        text=sequence.text,
        token_ids=list(sequence.output_token_ids),
        cumulative_logprob=sequence.cumulative_logprob if wants_logprobs or sequence.needs_logprobs else None,
        logprobs=list(sequence.logprobs) if wants_logprobs else None,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
    )


def metrics_of(sequences: Many[Sequence]) -> RequestMetrics:
    """The times of a request so far, over all its completions."""
    begun = [sequence for sequence in sequences if sequence.output_token_ids]
    generated = sum(len(sequence.output_token_ids) for sequence in begun)
    first_token_time = min((sequence.first_token_time for sequence in begun), default=None)
    decode_seconds = max(sequence.last_token_time for sequence in begun) - first_token_time if begun else 0.0
    return RequestMetrics(
        prompt_tokens=len(sequences[0].prompt_token_ids),
        generated_tokens=generated,
        time_to_first_token=first_token_time - sequences[0].arrival_time if begun else None,
        decode_seconds=decode_seconds,
        decode_tokens_per_second=(generated - len(begun)) / decode_seconds if decode_seconds > 0 else None,
    )
