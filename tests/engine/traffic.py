"""Random requests of all kinds for an LLMEngine that now and then fails, and what became of each."""

import random

from minllm import SamplingParams
from minllm.errors import DeadlineError, InvalidRequestError, OutOfMemoryError
from tests.engine.scheduling.scripted_runner import check_books
from tests.models.random_models import prompt


class Fault(RuntimeError):
    """What a machine does now and then."""


class Traffic:
    """Requests on one model. `differing`: those that got other tokens than an equal one before."""

    def __init__(self, llm, seed):
        self.llm, self.engine, self.random = llm, llm.llm_engine, random.Random(seed)
        self.open, self.ended, self.refused, self.known = {}, {}, 0, {}
        self.number, self.faults, self.differing = 0, 0, []
        self.execute = llm.engine.runner.execute
        llm.engine.runner.execute = self.unreliable

    def unreliable(self, step):
        """A step may fail before or after it was launched."""
        fails = self.random.random()
        if fails < 0.004:
            self.faults += 1
            if fails < 0.002:
                self.execute(step)
            raise Fault("now and then")
        return self.execute(step)

    def run(self, count, most_open=20):
        """Until `count` requests have come and gone; what is asked of the model after that does not fail."""
        while self.number < count or self.engine.has_unfinished_requests():
            if self.number < count and len(self.open) < most_open:
                for _ in range(self.random.choice([0, 1, 1, 3])):
                    self.arrive()
            if self.open and self.random.random() < 0.05:
                self.leave()
            self.step()
            if self.random.random() < 0.1:
                check_books(self.llm.engine.scheduler.queues)
        self.llm.engine.runner.execute = self.execute
        assert not self.open and len(self.ended) + self.refused == self.number

    def params(self, which):
        """One of a few sets of parameters, good and bad."""
        choices = [
            dict(temperature=0), dict(temperature=1.0, n=3), dict(temperature=1.0, n=2, best_of=4), dict(temperature=0, logprobs=2),
            dict(temperature=0.8, top_p=0.9, repetition_penalty=1.2), dict(max_tokens=0), dict(temperature=0, prompt_logprobs=1),
            dict(temperature=1.0, logits_processors=[lambda output, logits: logits + 1.0]), dict(temperature=0, bad_words=["def x", "a"]),
            dict(temperature=1.2, stop=["e", "the"]), dict(temperature=1.0, stop_token_ids=list(range(0, 1000, 9)), min_tokens=2),
            dict(temperature=0, stop_token_ids=[5000]), dict(temperature=0, logit_bias={2000: 1.0}),
            dict(temperature=1.0, detokenize=False, allowed_token_ids=[1, 2, 3]),
        ]  # fmt: skip
        return SamplingParams(**dict(max_tokens=1 + 7 * which % 23, seed=which, ignore_eos=True) | choices[which % len(choices)])

    def arrive(self):
        """A request with a random prompt, parameters, priority, salt and deadline; some are refused."""
        which, name = self.random.randrange(140), f"request {self.number}"
        self.number += 1
        length = self.random.choice([1, 5, 16, 33, 60, 200])
        token_ids = (prompt(32) + prompt(200, seed=which % 3))[:length] if which % 2 else prompt(length, seed=which % 5)
        deadline = self.random.choice([None] * 12 + [0.0, 0.01])
        try:
            self.engine.add_request(
                name, token_ids, self.params(which), priority=self.random.choice([0, 0, 1, -1]), deadline=deadline,
                cache_salt=self.random.choice([None, None, "salt"]),
            )  # fmt: skip
            self.open[name] = (which, length, deadline)
        except (InvalidRequestError, OutOfMemoryError):
            self.refused += 1

    def leave(self):
        """One of those that run or wait is given up."""
        name = self.random.choice(list(self.open))
        self.engine.abort_request(name)
        self.ended[name] = "abort"
        del self.open[name]

    def step(self):
        """Compute a step, and note who ended, and how."""
        for output in self.engine.step():
            if output.finished:
                self.end(output)

    def end(self, output):
        """Check what a request got against others that asked the same."""
        which, length, deadline = self.open.pop(output.request_id)
        reasons = {completion.finish_reason for completion in output.outputs}
        assert reasons <= {"stop", "length", "error"}
        self.ended[output.request_id] = "error" if output.error is not None else "done"
        if output.error is not None:
            assert isinstance(output.error, Fault | DeadlineError | OutOfMemoryError)
            assert isinstance(output.error, Fault) or deadline is not None or self.llm.options.preemption == "drop"
        else:
            assert "error" not in reasons
            found = [completion.token_ids for completion in output.outputs]
            if self.known.setdefault((which, length), found) != found:
                self.differing.append(output.request_id)
