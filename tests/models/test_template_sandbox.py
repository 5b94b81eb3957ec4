"""What a chat template may cost: each of these would run for minutes, or take gigabytes, in Jinja's own sandbox."""

import threading
import time

import pytest

from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models import template_sandbox
from minllm.models.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a b"}]
DOUBLE = "{%% set ns = namespace(x='ab') %%}{%% for i in range(60) %%}%s{%% endfor %%}{{ ns.x | length }}"
NAMESPACES = "{% set n0 = namespace(a=1) %}" + "".join(
    f"{{% set n{i + 1} = namespace() %}}{{% set n{i + 1}.a = n{i} %}}{{% set n{i + 1}.b = n{i} %}}" for i in range(40)
)
BOMBS = {
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested powers": "{{ 9 ** (9 ** 9) }}",
    "a power of a variable": "{% set n = 9 %}{{ (n ** (n ** n)) % 7 }}",
    "a repeated text": "{{ 'a' * 10 ** 9 }}",
    "a repeated list": "{{ ([1] * 10 ** 9) | length }}",
    "doubling by +": DOUBLE % "{% set ns.x = ns.x + ns.x %}",
    "doubling by ~": DOUBLE % "{% set ns.x = ns.x ~ ns.x %}",
    "doubling by a block": DOUBLE % "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
    "doubling by replace": DOUBLE % "{% set ns.x = ns.x.replace('a', ns.x) %}",
    "doubling by the filter": DOUBLE % "{% set ns.x = ns.x | replace('b', ns.x) %}",
    "doubling by join": DOUBLE % "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}",
    "doubling by format": DOUBLE % "{% set ns.x = '{0}{0}'.format(ns.x) %}",
    "doubling by %": DOUBLE % "{% set ns.x = '%%s%%s' %% (ns.x, ns.x) %}".replace("%%", "%"),
    "nested lists": DOUBLE % "{% set ns.x = [ns.x, ns.x] %}" + "{{ ns.x }}",
    "nested tuples": DOUBLE % "{% set ns.x = (ns.x, ns.x) %}" + "{{ ns.x }}",
    "nested dicts": DOUBLE % "{% set ns.x = dict(a=ns.x, b=ns.x) %}" + "{{ ns.x | tojson }}",
    "nested namespaces": NAMESPACES + "{{ n40 }}",
    "numbers that double": "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "arguments in arguments": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1, a=kwargs, b=kwargs) }}{% endif %}{{ kwargs }}{% endmacro %}{{ f(60) }}"
    ),
    "a wide format": "{{ '{:999999999}'.format(1) }}",
    "a computed width": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "a wide %": "{{ '%999999999d' % 1 }}",
    "a wide % by a filter": "{{ '%999999999d' | format(1) }}",
    "a wide filter": "{{ 'a' | center(10 ** 9) }}",
    "a wide method": "{{ 'a'.ljust(10 ** 9) }}",
    "bytes": "{{ (5).to_bytes(10 ** 9, 'big') }}",
    "an indent": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "a rounding": "{{ 5 | round(10 ** 9, 'floor') }}",
    "words without end": "{{ lipsum(n=10 ** 9) }}",
    "much output": "{% for i in range(99999) %}" + "text " * 1000 + "{% endfor %}",
    "a slow search": "{{ ('a' * 4000000).rfind('b' + 'a' * 2000000) }}",
}


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS.keys())
def test_a_template_that_would_never_end_is_stopped(template, monkeypatch):
    monkeypatch.setattr(template_sandbox, "SECONDS", 0.3)
    start = time.thread_time()
    with pytest.raises(InvalidRequestError, match="chat template (was stopped|does not take these messages)") as caught:
        ChatTemplate(template).render(MESSAGES)
    assert time.thread_time() - start < 3 and len(str(caught.value)) < 1000


def test_the_time_limit_holds_in_a_thread(monkeypatch):
    monkeypatch.setattr(template_sandbox, "SECONDS", 0.1)
    errors = []

    def render():
        try:
            ChatTemplate(BOMBS["nested ranges"]).render(MESSAGES)
        except InvalidRequestError as error:
            errors.append(str(error))

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(20)
    assert len(errors) == 1 and "still running" in errors[0]


def test_templates_that_are_too_long_or_too_deep_are_refused():
    with pytest.raises(CheckpointError, match="262,144 are allowed"):
        ChatTemplate("a" * 300_000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        ChatTemplate("{% for i in x %}" * 40 + "{% endfor %}" * 40)


def test_a_long_conversation_renders_in_time():
    template = (
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}"
        "{% if loop.last and loop.length == messages | length %}{{ [m.role, {'a': loop.revindex}] | tojson }}{% endif %}{% endfor %}"
    )
    text = ChatTemplate(template).render([{"role": "user", "content": "word " * 500}] * 1000)
    assert text.endswith("<user>" + ("word " * 500).strip() + '["user", {"a": 1}]') and text.count("<user>") == 1000


@pytest.mark.parametrize("template", ["{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns.__a__ = 1 %}"])
def test_a_namespace_holds_no_names_of_pythons(template):
    with pytest.raises(InvalidRequestError, match="a namespace may not hold '_+a_*'"):
        ChatTemplate(template).render(MESSAGES)
    allowed = "{% set ns = namespace({'a': 1}, self=2) %}{% set ns.b = 3 %}{{ ns.a }}{{ ns.self }}{{ ns.b }}"
    assert ChatTemplate(allowed).render(MESSAGES) == "123"
