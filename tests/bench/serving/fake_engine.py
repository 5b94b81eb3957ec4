"""An engine without a model, on a virtual clock: every step takes `step_seconds` and gives each running request one token."""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

VOCABULARY = 4096


@dataclass(frozen=True)
class Stats:
    """The fields of EngineStats."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_preemptions: int
    prefix_cache_hits: int
    prefix_cache_queries: int
    num_steps: int
    num_window_blocks_freed: int = 0
    num_corrupted_requests: int = 0
    num_graphs: int = 0
    graph_memory_bytes: int = 0
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_tried_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    spec_decode_num_accepted_tokens_per_pos: tuple[int, ...] = ()


class FakeEngine:
    """tokens_per_step: as with speculative decoding. failing: ids of requests that end without success. dropping: that end silently."""

    def __init__(self, clock, step_seconds=1.0, max_num_seqs=1000, tokens_per_step=1, failing=(), dropping=()):
        self.clock, self.step_seconds, self.max_num_seqs, self.tokens_per_step = clock, step_seconds, max_num_seqs, tokens_per_step
        self.failing, self.dropping = set(failing), set(dropping)
        self.waiting, self.running, self.aborted, self.added = [], {}, [], []
        self.policies = []
        self.preemptions = self.queries = self.steps = 0
        self.most_running = 0

    def add_request(self, request_id, prompt, sampling_params, *, priority=0, deadline=None, cache_salt=None):
        assert sampling_params.temperature == 0.0 and sampling_params.ignore_eos
        self.added.append((request_id, self.clock.now(), prompt))
        self.queries += len(prompt)
        self.waiting.append((request_id, prompt, sampling_params.max_tokens))

    def abort_request(self, request_id):
        self.aborted.append(request_id)
        self.running.pop(request_id, None)
        self.waiting = [one for one in self.waiting if one[0] != request_id]

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def advance(self):
        self.clock.sleep(self.step_seconds)
        self.steps += 1
        while self.waiting and len(self.running) < self.max_num_seqs:
            request_id, prompt, length = self.waiting.pop(0)
            self.running[request_id] = (prompt, length, [])
        self.most_running = max(self.most_running, len(self.running))
        moved = []
        for request_id, (prompt, length, tokens) in list(self.running.items()):
            if request_id in self.dropping:
                del self.running[request_id]
                continue
            tokens += [7] * min(self.tokens_per_step, length - len(tokens))
            fails = request_id in self.failing
            reason = "abort" if fails else "length" if len(tokens) == length else None
            if reason:
                del self.running[request_id]
            moved.append(
                SimpleNamespace(
                    request_id=request_id,
                    prompt_token_ids=prompt,
                    output_token_ids=list(tokens),
                    finish_reason=reason,
                    is_finished=reason is not None,
                )  # fmt: skip
            )
        return moved

    def set_scheduling_policy(self, name):
        """Its static policy serves one request at a time."""
        self.policies.append(name)
        self.max_num_seqs = 1 if name == "static" else 1000

    def stats(self):
        usage = min(1.0, len(self.running) / 10)
        return Stats(len(self.running), len(self.waiting), usage, self.preemptions, self.queries // 4, self.queries, self.steps)


def opener(clock, made=None, **settings):
    """An `open_engine` of ServingBench, which notes the options it was given in `made`."""

    @contextmanager
    def open_engine(options):
        engine = FakeEngine(clock, max_num_seqs=options.get("max_num_seqs", 1000), **settings)
        if made is not None:
            made.append((options, engine))
        yield engine, VOCABULARY

    return open_engine
