"""An engine that answers with a text of the test's."""

import json
import time

from minllm.server.engine_client import EngineClient, Job
from minllm.server.wire import Delta, Head, Update


def answering(text, size=3):
    """EngineClient.submit of an engine that answers every request with a text, in pieces of `size` characters."""

    def submit(requests):
        job = Job(EngineClient(), [-1])
        for begin in range(0, len(text), size):
            is_last = begin + size >= len(text)
            head = None if begin else Head(len(json.dumps(requests[0].chat)), 0, None, None, None, None)
            delta = Delta(0, text[begin : begin + size], [1], None, "stop" if is_last else None, None)
            job.put(0, Update(head, [delta], is_last, None), time.perf_counter())
        return job

    return submit
