"""What every process of a launch runs in test_launched.py: python -m tests.engine.ranks.launched_program PROGRAM MODEL OPTIONS(JSON)."""

import json
import os
import signal
import sys

import numpy as np

from minllm import LLM, SamplingParams
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.errors import MinLLMError

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[5, 6, 7], [11] * 30, [2, 3]]
OPTIONS = dict(device="cpu", max_model_len=64, max_num_seqs=3, max_num_batched_tokens=24, block_size=8)
RANK = int(os.environ.get("RANK", 0))


def louder(_output_token_ids, logits):
    return 1.5 * np.roll(logits, 1)


def failing(_output_token_ids, _logits):
    raise ZeroDivisionError("a fault of this test")


def computed(llm: LLM) -> dict:
    """What every public call returns, as JSON takes it."""
    sampled = SamplingParams(temperature=0.9, top_p=0.8, seed=4, n=2, max_tokens=6, logprobs=1)
    processed = SamplingParams(temperature=0, logits_processors=[louder], max_tokens=4)
    return {
        "greedy": [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, GREEDY)],
        "sampled": [[list(two.token_ids) for two in one.outputs] for one in llm.generate(PROMPTS, sampled)],
        "processed": [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, processed)],
        "beams": [beam.tokens for beam in llm.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=2, max_tokens=3))[0].sequences],
        "likeliest": llm.logits(PROMPTS[1]).argmax(1).tolist(),
        "perplexity": round(llm.perplexity(PROMPTS[0], 16, 8), 1),
    }


def run(program: str, llm: LLM) -> None:
    """Rank 1 does what a program is named for; the others generate."""
    if program == "compute":
        print(json.dumps(computed(llm)))
        for wrong in (lambda: llm.generate([[10**9]]), lambda: llm.generate(PROMPTS, SamplingParams(logits_processors=[failing]))):
            try:
                wrong()
            except (MinLLMError, ZeroDivisionError) as error:
                print(f"{type(error).__name__}: {error}")
        for refused in (lambda: llm.stream([1]), lambda: llm.llm_engine.engine.runner.processes.send(None)):
            try:
                refused()
            except (MinLLMError, AttributeError) as error:
                print(f"{type(error).__name__}: {error}" if RANK == 0 else "refused")
        return
    outputs = llm.generate(PROMPTS, GREEDY)
    if program == "greedy":
        print(json.dumps([list(one.outputs[0].token_ids) for one in outputs]))
        return
    if program == "stop" and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if program == "raise" and RANK == 1:
        llm.engine.runner.execute = None  # the next step fails here
    if program == "other call" and RANK == 1:
        llm.logits(PROMPTS[0])
    prompts = PROMPTS[:1] if program == "other prompts" and RANK == 1 else PROMPTS
    if program == "close" and RANK == 1:
        return
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40))


if __name__ == "__main__":
    _, chosen, model, given = sys.argv
    with LLM(model, **OPTIONS | json.loads(given), distributed_executor_backend="external_launcher") as made:
        run(chosen, made)
