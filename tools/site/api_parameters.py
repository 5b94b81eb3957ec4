"""A Griffe extension: the parameters and fields of the public API as tables on the API page, none of them written a second time.

Name, type and default come from the signature. The meaning comes from the docstring, as an entry "name: meaning." of a function or class;
from the text behind a field; or from the comment beside it. A parameter without an entry has that of the same parameter in a function that
the docstring names ("Like chat()"), or of the engine's option of that name. Allowed values are the words of
an option's check, or what the class says when it refuses a value.
"""

import re
from collections.abc import Iterator

import griffe

import minllm
from minllm.engine.option_checks import allowed_of
from minllm.engine.options import EngineOptions
from minllm.errors import MinLLMError

OUTPUTS = "minllm.engine.requests.outputs"
OPTIONS = "minllm.engine.options.EngineOptions"
# Functions of these classes are on the page; so are the fields of all other public classes.
FUNCTIONS_OF = ("minllm.engine.llm.LLM", "minllm.engine.async_llm.AsyncLLM", "minllm.engine.llm_engine.LLMEngine")
REQUIRED = {"BeamSearchParams": dict(beam_width=1, max_tokens=1)}  # arguments without which a class cannot be made
NAMES = r"(?:\*{0,2}`?\w+`?)(?:(?:, | and )`?\w+`?)*"
ENTRY = re.compile(rf"(?:^|(?<=[.)] ))({NAMES}): ")
REFUSED = re.compile(r"is not allowed: (?:\w+ is|give) (.*)", re.DOTALL)


class Extension(griffe.Extension):
    """Gives public classes and their functions parsed docstrings with a section of parameters or fields."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_) -> None:
        """Once the package is loaded, since docstrings refer to each other."""
        if pkg.path != "minllm":
            return
        for path in public_classes():
            one = pkg[path.removeprefix("minllm.")]
            if path in FUNCTIONS_OF:
                made_by_users = [one] if path.endswith("LLM") else []
                for function in (*made_by_users, *one.functions.values()):
                    tabulate(function, parameters(function, pkg))
            else:
                tabulate(one, fields(one), as_results=path.startswith(OUTPUTS))
                for name in [name for name, member in one.attributes.items() if "property" not in member.labels]:
                    del one.members[name]  # it is in the table


def public_classes() -> list[str]:
    """The paths of the classes that `import minllm` offers, of the options, and of the parts of a result."""
    offered = [f"{home}.{name}" for name, home in minllm._HOMES.items()]
    return [*offered, OPTIONS, *(f"{OUTPUTS}.{name}" for name in ("Logprob", "RequestMetrics"))]


def tabulate(one: griffe.Object, rows: list[griffe.DocstringParameter], as_results: bool = False) -> None:
    """Replace the docstring's entries by a table."""
    if one.docstring is None or not rows:
        return
    prose, _ = described(one.docstring.value, [row.name for row in rows])
    if as_results:
        rows = [griffe.DocstringAttribute(row.name, annotation=row.annotation, description=row.description) for row in rows]
    section = griffe.DocstringSectionAttributes(rows, "Fields:") if as_results else griffe.DocstringSectionParameters(rows)
    one.docstring.__dict__["parsed"] = [griffe.DocstringSectionText(prose), section]


def parameters(function: griffe.Object, pkg: griffe.Module) -> list[griffe.DocstringParameter]:
    """The parameters of a function, or of a class's __init__."""
    signature = function.members["__init__"] if function.is_class else function
    rows = []
    for one in signature.parameters:
        if one.name not in ("self", "cls"):
            stars = {griffe.ParameterKind.var_keyword: "**", griffe.ParameterKind.var_positional: "*"}.get(one.kind, "")
            default = "none" if stars else one.default
            text = meaning(function, one.name, pkg)
            rows.append(griffe.DocstringParameter(stars + one.name, annotation=one.annotation, description=text, value=default))
    return rows


def meaning(function: griffe.Object, name: str, pkg: griffe.Module, seen: frozenset[str] = frozenset()) -> str:
    """What a parameter means, by the docstring, by a function that it refers to, or by the option of that name; "" if nothing says it."""
    text = function.docstring.value if function.docstring else ""
    _, entries = described(text, [name])
    found = entries.get(name, "")
    if found and not re.match(r"as in \S+\.?$", found):
        return found
    for other in referred(function, found or text, pkg):
        if other.path not in seen and any(one.name == name for one in other.parameters):
            there = meaning(other, name, pkg, seen | {function.path})
            if there:
                return there
    option = pkg[OPTIONS.removeprefix("minllm.")].attributes.get(name)
    return found or (option.docstring.value if option else "")


def referred(function: griffe.Object, text: str, pkg: griffe.Module) -> Iterator[griffe.Function]:
    """The functions of LLM, or else of its own class, that a docstring names."""
    own = function if function.is_class else function.parent
    for of_llm, name in re.findall(r"(LLM\.)?`?(\w+)`?", text):
        there = pkg["engine.llm.LLM"] if of_llm else own
        if name in there.functions and there.functions[name] is not function:
            yield there.functions[name]


def fields(one: griffe.Class) -> list[griffe.DocstringParameter]:
    """The fields of a dataclass or TypedDict, with what is allowed."""
    known = [name for name, member in one.attributes.items() if "property" not in member.labels and not name.startswith("_")]
    entries = described(one.docstring.value, known)[1] if one.docstring else {}
    rows = []
    for name in known:
        attribute = one.attributes[name]
        text = attribute.docstring.value if attribute.docstring else entries.get(name) or comment(attribute)
        values = allowed(one.name, name)
        text = f"{text}{'' if text.endswith('.') else '.'} Allowed: {values}." if values else text
        rows.append(griffe.DocstringParameter(name, annotation=attribute.annotation, description=text, value=default_of(attribute)))
    return rows


def default_of(attribute: griffe.Attribute) -> str | None:
    """The default of a field; None if it is required."""
    if "NotRequired" in str(attribute.annotation):
        return "none"
    made = re.match(r"(?:field\(default=|option\()([^,)]+)", str(attribute.value))
    return None if attribute.value is None else made[1] if made else str(attribute.value)


def comment(attribute: griffe.Attribute) -> str:
    """The comment on the field's line."""
    line = attribute.lines_collection[attribute.filepath][attribute.lineno - 1]
    return line.partition("  # ")[2]


def allowed(class_name: str, name: str) -> str:
    """What an option's check says, or a class when it refuses a value of no type that it knows; "" if it refuses nothing."""
    if class_name == "EngineOptions":
        return allowed_of(EngineOptions.__dataclass_fields__[name]).says
    if not class_name.endswith("Params"):
        return ""
    try:
        getattr(minllm, class_name)(**{**REQUIRED.get(class_name, {}), name: object()})
    except MinLLMError as refused:
        found = REFUSED.search(str(refused))
        return found[1].rstrip(".") if found else ""
    return ""


def described(text: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """(a docstring without its entries, {name: meaning}). An entry is "name: meaning" at the beginning of a sentence, or "a and b: ...".

    It ends with its paragraph or where the next one begins.
    """
    bare = {name.lstrip("*") for name in names}
    prose, entries = [], {}
    for paragraph in re.split(r"\n\s*\n", text):
        joined = paragraph if re.search(r"^    ", paragraph, re.MULTILINE) and not ENTRY.match(paragraph) else " ".join(paragraph.split())
        begins = [match for match in ENTRY.finditer(joined)]
        ends = [match.start() for match in begins[1:]] + [len(joined)]
        kept = joined[: begins[0].start()] if begins else joined
        for match, end in zip(begins, ends):
            named = [word.strip("`*") for word in re.split(r", | and ", match[1])]
            entries.update({name: joined[match.end() : end].strip() for name in named if name in bare})
        if kept.strip():
            prose.append(kept.strip() if begins else kept)
    return "\n\n".join(prose), entries
