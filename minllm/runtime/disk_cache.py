"""Cubins and disassembly on disk: a kernel is compiled once per machine."""

import contextlib
import json
import os
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

CAN_LOCK = fcntl is not None


def cache_directory() -> Path:
    """The folder for cubins: $MINLLM_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("MINLLM_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "minllm" / "kernels"


def entry(key, kind="cubin"):
    """The path of an entry's file."""
    return cache_directory() / key[:2] / f"{key}.{kind}"


def is_cached(key) -> bool:
    """Whether there is an entry; it may be damaged."""
    return entry(key).exists()


def is_writable() -> bool:
    """Whether entries can be written."""
    with contextlib.suppress(OSError):
        cache_directory().mkdir(parents=True, exist_ok=True)
        return os.access(cache_directory(), os.W_OK)
    return False


def read_cached(key, make):
    """make(cubin=..., **fields) for the entry of `key`, or None if it is missing or damaged."""
    try:
        header, _, cubin = entry(key).read_bytes().partition(b"\n")
        fields = json.loads(header)
        return make(cubin=cubin, **fields) if fields.pop("bytes") == len(cubin) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_cached(key, compiled):
    """Write a CompiledKernel, if the disk allows: a line of JSON, then the cubin."""
    fields = {name: value for name, value in vars(compiled).items() if name != "cubin"} | {"bytes": len(compiled.cubin)}
    write(entry(key), json.dumps(fields).encode() + b"\n" + compiled.cubin)


@contextlib.contextmanager
def making(key, wait=True):
    """A lock to hold while making the entry `key`, so that a second process waits for the first instead of making it too.

    Yields whether this process holds the lock: False if `wait` is false and another process has it. The lock is on the entry's folder, so
    it leaves no file behind, and ends with its process. Without a folder, and on Windows, nothing is locked and both make the entry.
    """
    if not CAN_LOCK:
        yield True
        return
    with contextlib.ExitStack() as stack:
        is_mine = True
        try:
            folder = entry(key).parent
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_mine = False
        except OSError:
            pass
        yield is_mine


def cached_text(key, kind, make):
    """The text of an entry; if there is none, that of make(), which is written to the cache."""
    path = entry(key, kind)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (text := path.read_text(encoding="utf-8")).endswith("\n"):
            return text
    text = make()
    write(path, text.encode())
    return text


def write(path, contents):
    """Write a file atomically; if that fails, do nothing."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(contents)
        try:
            os.replace(file.name, path)
        except OSError:  # on Windows, while another process reads the entry
            os.unlink(file.name)
