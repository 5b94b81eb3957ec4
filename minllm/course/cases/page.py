"""Shows a detective case on a page: the story and the broken code; hint, finding and solution are collapsed."""

from minllm.course.cases import find
from minllm.course.cases.case import Case, Finding, finding
from minllm.course.layout import WIDTH, closed, prose
from minllm.course.source import show_source


class CasePage:
    """A case that displays itself as Markdown."""

    def __init__(self, case: Case):
        self.case = case

    def _repr_markdown_(self) -> str:
        case = self.case
        found = "\n".join(piece for line in finding(case, case.broken).message.splitlines() for piece in prose(line, WIDTH) or [""])
        parts = [
            f"**{case.title}{'' if case.title.endswith('?') else '.'}** {case.story}",
            show_source(case.broken)._repr_markdown_(),
            f"What is wrong? Decide before you let the simulator look:\n\n```python\nfrom minllm.course import investigate\n\n"
            f'investigate("{case.name}")\n```',
            closed("A hint", case.hint),
            closed("What the simulator finds", f"```text\n{found}\n```", "info"),
            closed("The solution", f"Line {case.guilty_line}. {case.solution}\n\n{show_source(case.mended)._repr_markdown_()}", "success"),
            f'A {case.kind} of your own is tried by `investigate("{case.name}", my_{case.kind})`.',
        ]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return f"{self.case.title}: {self.case.story}"


def show_case(name: str) -> CasePage:
    """The detective case of this name. Raises ExerciseError for an unknown one."""
    return CasePage(find(name))


def investigate(name: str, mine: object = None) -> Finding:
    """The simulator's finding for the case's code, or for a reader's.

    Raises ExerciseError for an unknown name.
    """
    case = find(name)
    return finding(case, case.broken if mine is None else mine)
