"""Reads the small JSON files of a model directory; errors name the file, the key and the allowed values."""

import json
import math
from pathlib import Path
from typing import Any

from minllm.errors import CheckpointError

REQUIRED = object()
LARGEST_JSON_FILE = 64 << 20  # bytes; configurations have a few kilobytes, and tokenizer.json has its own reader


# Limits of keys that determine how much memory is allocated before any tensor is checked against them.
LARGEST_VALUES = dict.fromkeys(("num_hidden_layers", "n_layer"), 10_000) | dict.fromkeys(("num_experts", "num_local_experts"), 1024)


def refuse_special_file(path: Path) -> None:
    """Raises CheckpointError for a FIFO, socket or device, on which a read may block; a missing file passes."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CheckpointError(f"{path} is a FIFO, a socket or a device, and a model's files are regular files: give a copy of the file.")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises CheckpointError if the file is missing, unreadable, not JSON or not an object.
    """
    try:
        refuse_special_file(path)
        if path.stat().st_size > LARGEST_JSON_FILE:
            raise CheckpointError(f"{path} is larger than {LARGEST_JSON_FILE >> 20} MiB, which no configuration is.")
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # Windows' editors write a byte order mark
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing from {path.parent}. A model directory holds config.json, tokenizer.json and model.safetensors "
            "(or its shards with model.safetensors.index.json); copy the missing file from where the model came from."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested beyond reason
        raise CheckpointError(f"{path} is not valid JSON ({error}); the file is damaged, copy it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, and holds a {type(content).__name__}.")
    return content


class Fields:
    """Typed access to the keys of one JSON object; `source` names it in errors.

    A key with the value null counts as missing. The methods raise CheckpointError if the value has another type, or if a key without
    default is missing.
    """

    def __init__(self, values: dict[str, Any], source: str):
        self.values = values
        self.source = source

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _get(self, key: str, default: object, allowed: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.source} lacks {key!r}, which must be {allowed}.")
        return default

    def wrong(self, key: str, value: object, allowed: str) -> CheckpointError:
        """The error for a value of another type."""
        return CheckpointError(f"{self.source} says {key} = {value!r}, and it must be {allowed}.")

    def integer(self, key: str, default: object = REQUIRED, minimum: int = 1) -> int:
        """A whole number of at least `minimum` and at most the key's limit in LARGEST_VALUES."""
        maximum = LARGEST_VALUES.get(key, 2**31 - 1)
        allowed = f"a whole number from {minimum} to {maximum}" if key in LARGEST_VALUES else f"a whole number of at least {minimum}"
        value = self._get(key, default, allowed)
        if value is default and default is not REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(key, value, allowed)
        return value

    def number(self, key: str, default: object = REQUIRED, above: float = -math.inf, allowed: str = "a finite number") -> float:
        """A finite number greater than `above`."""
        value = self._get(key, default, allowed)
        if value is default and default is not REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > above):
            raise self.wrong(key, value, allowed)
        return float(value)

    def positive(self, key: str, default: object = REQUIRED) -> float:
        """A finite number above zero."""
        return self.number(key, default, above=0.0, allowed="a number above zero")

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        """A boolean."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: object = REQUIRED) -> str:
        """A string."""
        value = self._get(key, default, "a string")
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """A JSON object; an empty one if the key is missing."""
        value = self._get(key, {}, "an object")
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; empty if the key is missing."""
        value = self._get(key, [], "a token id or a list of them")
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 2**31 for i in ids):
            raise self.wrong(key, value, "a token id or a list of them")
        return tuple(ids)
