"""`minllm serve` with its two processes, as a user starts it."""

import re
import subprocess
import sys
import threading
from contextlib import contextmanager


@contextmanager
def started(*options):
    """(process, address) of `minllm serve` with the bundled model."""
    command = [sys.executable, "-m", "minllm", "serve", "--device=cpu", "--dtype=float32", "--port=0", "--max-model-len=512", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while not (found := re.search(r"http://\S+", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, found[0]
    finally:
        process.kill()
        process.wait()


def engine_of(process):
    """The id of the engine's process."""
    return int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()[0])
