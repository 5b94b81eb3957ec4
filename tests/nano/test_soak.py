"""Hundreds of mixed requests in a small cache: each gets the tokens that it gets alone, and no block is lost."""

import random

from minllm.nano import NanoLLM, SamplingParams
from tests.engine.models import model_directory
from tests.models.random_models import prompt


def test_mixed_requests_on_the_cpu(request):
    count, chance = 2500 if request.config.option.exhaustive else 60, random.Random(5)
    sizes = dict(num_blocks=16, block_size=4, max_num_seqs=6, max_num_batched_tokens=20)
    llm, alone = (NanoLLM(model_directory("small"), **sizes) for _ in range(2))
    kinds, expected, made, running = [], {}, 0, []
    for length in range(1, 30, 7):
        for temperature in (0, 0.8):
            kinds.append((prompt(length), SamplingParams(temperature=temperature, seed=length, max_tokens=1 + length % 9, ignore_eos=True)))
    while made < count or running:
        if made < count and len(running) < 12:
            kind = chance.randrange(len(kinds))
            running.append((kind, llm.add(*kinds[kind])))
            made += 1
        llm.step()
        for kind, sequence in running:
            if not sequence.finish_reason and chance.random() < 0.02:
                llm.scheduler.finish(sequence, "abort")
            elif sequence.finish_reason == "length":
                if kind not in expected:
                    expected[kind] = alone.generate([kinds[kind][0]], kinds[kind][1])[0].token_ids
                assert sequence.output_token_ids == expected[kind]
        running = [(kind, sequence) for kind, sequence in running if not sequence.finish_reason]
    assert llm.scheduler.pool.num_free == 16 and len(expected) == len(kinds) and llm.scheduler.num_preemptions > 0
