"""The Jinja environment that chat templates expect, by transformers' documentation, "Writing a chat template".

It adds raise_exception, strftime_now, a tojson filter that does not escape HTML characters, and the generation tag.
"""

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SecurityError
from jinja2.utils import Namespace

from minllm.models.template_sandbox import BoundedEnvironment, current


def template_environment() -> BoundedEnvironment:
    """A sandboxed environment with the functions that chat templates expect."""
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _PublicNamespace
    return environment


class _PublicNamespace(Namespace):
    """A namespace without names that begin with an underscore, as in transformers: Python may call those outside the sandbox."""

    def __init__(self, /, *pairs: Any, **values: object):
        super().__init__()
        for name, value in dict(*pairs, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}: names that begin with an underscore are Python's")
        super().__setitem__(name, value)


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's text for training; in a rendered prompt the tag is replaced by its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget, pieces = current(), []
    for piece in encoder.iterencode(value):
        budget.spend(len(piece))
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def loops_over_content(template: nodes.Template) -> bool:
    """Whether a template loops over a message's content, and so accepts lists of parts.

    Other templates accept only strings. vLLM's chat_template_content_format="auto" decides in the same way.
    """
    names = {"content"}  # the usual parameter name of macros that write a content

    def is_content(node: nodes.Node) -> bool:
        while isinstance(node, nodes.Filter) and node.node is not None:
            node = node.node
        if isinstance(node, nodes.Getattr):
            return node.attr == "content"
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return isinstance(node, nodes.Name) and node.name in names

    for assignment in template.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and is_content(assignment.node):
            names.add(assignment.target.name)
    return any(is_content(loop.iter) for loop in template.find_all(nodes.For))
