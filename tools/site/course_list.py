"""The course page's list: five parts, and for each lesson a sentence, its words, the minutes that it takes, its exercises, a box to tick.

Words are those of the prose that is not folded, in steps of 50, without code, mathematics and sources. Minutes are computed from the
lesson: all prose at 180 words a minute, code at 12 lines a minute, 10 minutes per exercise, 5 per detective case. Code that the
page hides or closes, such as that of figures, does not count.
"""

import re
from pathlib import Path

from lesson_list import ROOT, lessons

WORDS, LINES, EXERCISE, CASE = 180, 12, 10, 5  # words and lines of code per minute, minutes per exercise and per case
FOLDED_OR_NOT_PROSE = (
    re.compile(r"^<!-- aside.*?<!-- end aside -->$", re.MULTILINE | re.DOTALL),
    re.compile(r"^\?\?\?.*\n(?:\n|    .*\n)*", re.MULTILINE),  # a block that opens when it is clicked
    re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"(?<=\])\([^)]*\)"),  # the address of a link
)
HEAD = ("| Lesson | Words | Minutes | Exercises | Done |", "| --- | ---: | ---: | ---: | :-: |")
PARTS = {
    "A model and its first kernels": {
        "1": "Follow one token through a whole model, and measure how well it predicts.",
        "2": "Write a kernel, run it without a GPU, break it twice, and see why neighbouring threads read neighbouring bytes.",
        "3": "Compute attention by hand on four tokens, then as three kernels that store far too much.",
        "4": "Predict from bytes and operations how fast anything can be.",
    },
    "Prompts: much arithmetic": {
        "5a": "Climb from a thousandth of the machine's speed to its tensor cores, by loading each number once and using it often.",
        "5b": "Let the hardware copy tiles and whole warpgroups multiply them, one warp loading what another multiplies.",
        "6": "Fuse the small kernels between the GEMMs, so that each number is read once.",
        "7": "Compute attention tile by tile, without ever storing a score.",
    },
    "Decoding: much memory": {
        "8": "Keep keys and values instead of computing them again, and count what that costs.",
        "9": "Split one long context over the whole machine, and merge the results.",
        "10": "Multiply by a few rows: too many for a GEMV, too few for a tile.",
        "11": "Store the cache in blocks that requests share.",
        "12": "Let virtual memory do the same, and swap to the host.",
        "13": "Keep keys and values in 8 or 4 bits, and measure what the text loses.",
    },
    "An engine": {
        "14": "Turn logits into a token: greedy, random, penalised, and without sorting.",
        "15": "Record a step's launches once, replay them, and close the gaps between kernels.",
        "16a": "Decide what goes into each step, so that nobody waits for somebody else's prompt.",
        "16b": "Predict the load at which a server gives way, and what to do when its cache is full.",
        "17": "Put everything together, and choose the hardware for it.",
    },
    "Further: fewer bytes, more machines, more users": {
        "18": "Store weights in 4 bits, and unpack them on the way to the multiplication.",
        "19": "Guess several tokens, verify them in one step, and keep the distribution exact.",
        "20": "Split a model over several GPUs, and add up their parts.",
        "22": "Serve many users: queues, first tokens, deadlines.",
        "23": "Send each token to a few of many experts, and sort tokens by expert.",
    },
}


def course_list(link) -> str:
    """The list in Markdown. link: the address of a lesson's page, from its path in the repository."""
    by_number = {title.partition(".")[0]: (title, path) for title, path in lessons()}
    lines = []
    for part, (name, sentences) in enumerate(PARTS.items(), 1):
        lines += [f"## {part}. {name}", "", *HEAD]
        for number, sentence in sentences.items():
            title, path = by_number.pop(number)
            text = (ROOT / path).read_text(encoding="utf-8")
            box = f'<input type="checkbox" data-lesson="{number}" aria-label="lesson {number} is done">'
            numbers = f"{50 * round(words(text) / 50):,} | {minutes(text)} | {len(exercises(text))}"
            lines.append(f"| [{title}]({link(path)})<br>{sentence} | {numbers} | {box} |")
        lines.append("")
    if by_number:
        raise ValueError(f"lessons {', '.join(by_number)} are in no part of {Path(__file__).name}")
    return "\n".join(lines).strip()


def exercises(text: str) -> list[str]:
    """The names of the exercises that a lesson shows."""
    return re.findall(r'"([a-z_]+\.[a-z0-9_]+)"', " ".join(re.findall(r"show_exercises\((.*?)\)", text, re.DOTALL)))


def words(text: str) -> int:
    """The words of a lesson's open prose."""
    cells = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)
    markdown = [cell for kind, cell in zip(cells[1::2], cells[2::2]) if "[markdown]" in kind]
    prose = re.sub(r"^# ?", "", "\n".join(markdown), flags=re.MULTILINE).partition("## Sources")[0]
    for unseen in FOLDED_OR_NOT_PROSE:
        prose = unseen.sub("", prose)
    return len(re.findall(r"[A-Za-z][\w'’-]*", prose))


def minutes(text: str) -> int:
    """The minutes that a lesson takes, in steps of 5."""
    prose = re.findall(r"^# .*$", text.partition("## Sources")[0], re.MULTILINE)
    shown = re.sub(r"^# %% tags=.*?(?=^# %%|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    code = [line for line in shown.splitlines() if line and not line.startswith("#")]
    total = sum(len(line.split()) for line in prose) / WORDS + len(code) / LINES
    total += EXERCISE * len(exercises(text)) + CASE * text.count("show_case(")
    return 5 * round(total / 5)
