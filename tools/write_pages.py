"""Write the generated parts of the README and of pages: lists of lessons, badges, addresses, the first page's kernel and its race,
charts, the server's options and fields.

    python tools/write_pages.py

Addresses come from [project.urls] of pyproject.toml, titles from the lessons. A part stands between two comments, and a test compares it:

    <!-- generated: lessons -->
    <!-- end generated -->
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "site")]
import home_cards
import home_page
import page_charts
import server_pages
from addresses import addresses
from course_list import course_list
from lesson_list import lessons

PAGES = (
    *("README.md", "docs/index.md", "docs/lessons.md", "docs/hosted-notebooks.md", "docs/serve.md", "docs/server-api.md"),
    *("docs/frameworks.md", "docs/results.md", "docs/quantised-weights.md", "lessons/README.md"),
)
SIMULATOR, FOREIGN = ROOT / "docs" / "simulator.md", ROOT / "docs" / "coming-from-cudasim.md"


def link(page: str, path: str) -> str:
    """A relative link from a page to a file of the repository."""
    if page.startswith("docs/") and path.startswith("docs/"):
        return path.removeprefix("docs/")
    return "../" * page.count("/") + path if not page.startswith("lessons/") else path.removeprefix("lessons/")


def lesson_list(page: str) -> str:
    """The lessons, each with badges that open it in a hosted notebook."""
    known, lines = addresses(), []
    for title, source in lessons():
        notebook = source.replace(".py", ".ipynb")
        badges = "".join(f" [[{service}]({address})]" for service, address in known.hosted(notebook).items())
        lines.append(f"- [{title}]({link(page, notebook)}){badges}")  # a numbered list would close the gaps between numbers
    return "\n".join(lines)


def first_link(page: str) -> str:
    """The README's first link: the site, or its page of the course in the repository while it has no address."""
    site, course = addresses().site, link(page, "docs/lessons.md")
    first = f"**[Read the course]({site}/lessons/)** on its site, or [here]({course})" if site else f"**[Read the course]({course})**"
    return f"{first}: {len(lessons())} lessons that open as notebooks with their results, without installing anything."


def badges(page: str) -> str:
    """Badges of the licence, of Python, and of a lesson in a hosted notebook."""
    shown = [
        f"[![Licence: Apache-2.0](https://img.shields.io/badge/licence-Apache--2.0-blue)]({link(page, 'LICENSE')})",
        f"[![Python 3.11 to 3.14](https://img.shields.io/badge/python-3.11_to_3.14-blue)]({link(page, 'pyproject.toml')})",
    ]
    hosted = addresses().hosted("lessons/02_your_first_kernel.ipynb")
    shown += [f"[![{name}: lesson 2](https://img.shields.io/badge/{name}-lesson_2-orange)]({address})" for name, address in hosted.items()]
    return "\n".join(shown)


def evidence(page: str) -> str:
    """What the simulator finds and counts: the numbers of its page, whose tests hold them, and of the programs of others."""
    counts = r"\*\*(\d+) kernels\*\* \| \| \*\*(\d+) of \d+\*\* \| \*\*(\d+) of \d+\*\*"
    kernels, bugs, alarms = re.search(counts, SIMULATOR.read_text(encoding="utf-8")).groups()
    simulator, foreign = (link(page, str(path.relative_to(ROOT))) for path in (SIMULATOR, FOREIGN))
    counted, equal = counted_kernels()
    results = foreign_results()
    return (
        f"The simulator finds **{bugs} of {kernels}** [planted bugs]({simulator}#what-it-finds-of-planted-bugs), raises "
        f"**{'no' if alarms == '0' else alarms} false alarm** for their correct twins, and counts\n"
        f"sectors and bank conflicts as [Nsight Compute does]({simulator}#how-exact-it-is) for **{equal} of {counted} kernels**. Of "
        f"**{results.total()} [programs of others]({foreign}#programs-of-others-that-were-tried)**\n"
        f"it ran {results['right']} right, found a bug in {results['found']}, and was wrong in silence in none."
    )


def counted_kernels() -> tuple[int, int]:
    """(kernels whose counts were compared with a GPU's counters, those whose counts are all equal)."""
    table = SIMULATOR.read_text(encoding="utf-8").partition("| | sectors loaded |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    return len(rows), sum(" / " not in row and "not measured" not in row for row in rows)


def foreign_results() -> Counter:
    """The number of programs of others by the first word of their result."""
    table = FOREIGN.read_text(encoding="utf-8").partition("| Repository | Program |")[2].partition("\n\n")[0]
    return Counter(re.match(r"\w+", row.split("|")[5].strip())[0] for row in table.splitlines()[2:])


def hosted_cell(page: str) -> str:
    """How a notebook gets minllm where it is not installed."""
    repository = addresses().repository
    if repository:
        return f"The first cell of a lesson clones [the repository]({repository}), and installs it with CUDA wheels for the driver."
    return (
        "This repository has no public address yet, so the first cell of a lesson cannot fetch it: upload a clone as the folder `minllm`\n"
        "beside the notebook, and the cell installs from it, with the CUDA wheels that fit the driver. Without one it says so."
    )


PARTS = {
    "course": lambda page: course_list(lambda path: link(page, path.replace(".py", ".ipynb"))),
    "lessons": lesson_list, "first-link": first_link, "badges": badges, "evidence": evidence, "hosted": hosted_cell,
    **{name: lambda page, make=make: make() for name, make in home_page.PARTS.items()},
    **{name: lambda page, name=name: page_charts.image(name) for name in page_charts.CHARTS},
    **{f"server-{make.__name__}": lambda page, make=make: make() for make in (
        server_pages.options, server_pages.fields, server_pages.metrics, server_pages.statuses
    )},
    "cards": lambda page: home_cards.with_images(),
    "chart": lambda page: f"![{home_page.ALTERNATIVE}](assets/speed.svg)",
}  # fmt: skip


def written(page: str) -> str:
    """The page with its generated parts as they are today."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return home_page.filled(text, lambda name: PARTS[name](page))


def main() -> None:
    """Write all pages, and the files of charts and cards."""
    for path, drawn in {**page_charts.files(), **home_cards.files()}.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    for page in PAGES:
        (ROOT / page).write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
