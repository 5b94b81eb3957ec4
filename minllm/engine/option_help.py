"""Documentation of LLM(**options), generated from the options that engine/options.py defines."""

import ast
import difflib
import inspect
from typing import Any

from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError


def check_names(given: dict[str, Any]) -> None:
    """Raise InvalidOptionError for an unknown option name, with the nearest known one."""
    names = list(inspect.signature(EngineOptions).parameters)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(names)}."
            raise InvalidOptionError(f"LLM() has no option {name}: {hint}")


def meanings(options: type) -> dict[str, str]:
    """{option: meaning}, the texts under the fields of a class of options; empty if its source cannot be read."""
    try:
        body: list[Any] = next(one.body for one in ast.parse(inspect.getsource(options)).body if isinstance(one, ast.ClassDef))
    except OSError:
        return {}
    pairs = zip(body, body[1:], strict=False)
    texts = [(field, text) for field, text in pairs if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)]
    return {ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split()) for field, text in texts}


def shows_options(llm: Any) -> Any:
    """Decorate LLM: its signature and docstring, and so help(LLM), show every option with type, default and meaning."""
    options = dict(inspect.signature(EngineOptions).parameters)
    model = options.pop("model").replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [p for p in inspect.signature(llm).parameters.values() if p.name not in ("model", "options")]
    llm.__signature__ = inspect.Signature([model, *options.values(), *own])
    texts = (f"{name}: {text}" for name, text in meanings(EngineOptions).items())
    llm.__doc__ = "\n".join([inspect.cleandoc(llm.__doc__ or ""), "", *texts])
    return llm
