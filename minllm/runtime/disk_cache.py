"""Cubins on disk, so that a kernel is compiled once a machine and not once a process."""

import contextlib
import json
import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """Where cubins are kept: $MINLLM_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("MINLLM_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "minllm" / "kernels"


def entry(key):
    """The file of an entry."""
    return cache_directory() / key[:2] / f"{key}.cubin"


def read_cached(key, make):
    """make(cubin=..., **fields) of what is kept under `key`, or None; a damaged entry counts as none."""
    try:
        header, _, cubin = entry(key).read_bytes().partition(b"\n")
        fields = json.loads(header)
        return make(cubin=cubin, **fields) if fields.pop("bytes") == len(cubin) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_cached(key, compiled):
    """Keep a CompiledKernel: one line of JSON, then the cubin. A full or read-only disk costs only the next start's time."""
    path = entry(key)
    fields = {name: value for name, value in vars(compiled).items() if name != "cubin"} | {"bytes": len(compiled.cubin)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(json.dumps(fields).encode() + b"\n" + compiled.cubin)
        os.replace(file.name, path)
