"""What each parameter of a request means, for the help of commands and for the server's schema."""

import inspect
import re


def meanings(of: type) -> dict[str, str]:
    """{field: meaning}, from the lines "field: meaning" of a class's docstring; empty if Python runs without docstrings."""
    text = inspect.cleandoc(of.__doc__ or "")
    return {name: " ".join(meaning.split()) for name, meaning in re.findall(r"^(\w+): (.+?)(?=^\w+: |\Z)", text, re.MULTILINE | re.DOTALL)}
