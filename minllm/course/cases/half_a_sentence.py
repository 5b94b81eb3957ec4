"""Turns what a completion gained into the chunks of a stream. Some clients wait for ever for the end of an answer."""

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.server.wire import Delta


def chunks(deltas):
    """A chunk, (text, finish_reason), for each delta that says something new."""
    for delta in deltas:
        if not delta.text:
            continue  # the newest token may be half of a letter, or the start of a stop string
        yield delta.text, delta.finish_reason


def mended_chunks(deltas):
    """The same; a finish_reason is new as well."""
    for delta in deltas:
        if not delta.text and delta.finish_reason is None:
            continue
        yield delta.text, delta.finish_reason


def deltas_of(pieces: list[str], reason: str) -> list[Delta]:
    """The deltas of an answer, a piece of text per token."""
    last = len(pieces) - 1
    return [Delta(0, piece, [7], None, reason if place == last else None, None) for place, piece in enumerate(pieces)]


ANSWERS = {
    "one that reaches max_tokens": (["def", " add", "(a"], "length"),
    "one with half a letter on its way": (["caf", "", "é"], "length"),
    "one that ends with a stop token": (["a", " + b", ""], "stop"),
}


def examine(chunks):
    """Three answers; the last token of the third is the stop token, which has no text."""
    right = []
    for name, (pieces, reason) in ANSWERS.items():
        sent = list(chunks(deltas_of(pieces, reason)))
        reasons = [found for _, found in sent if found is not None]
        if reasons != [reason] or "".join(text for text, _ in sent) != "".join(pieces):
            shown = ", ".join(f"{text!r} {found or '-'}" for text, found in sent)
            lines = [*right, f"{name}: sent {shown}; the finish_reason {reason!r} is missing"]
            raise Mismatch("\n".join(lines))
        right.append(f"{name}: right")


CASE = Case(
    name="half_a_sentence",
    lesson=22,
    title="Is that all?",
    story="The team that writes a coding agent complains: one answer in three never ends. The text is complete, the connection closes "
    "properly, and the agent asks again, because it takes the answer for one that was cut off. Your chat page shows nothing unusual, and "
    "neither do the tests, which ask for eight tokens and get eight. The log of the engine says that all these requests ended well, with "
    "reason stop.",
    hint="How does a client know that an answer is complete? List the last chunk of an answer that ends by itself, token by token.",
    broken=chunks,
    mended=mended_chunks,
    examine=examine,
    guilty="if not delta.text:",
    solution="Chunks without text were left out, which is right in the middle of an answer. But the last delta of an answer that ends by "
    "itself has no text: its token is the stop token. Its finish_reason went with it. Answers that reach max_tokens end in a token with "
    "text, so short tests pass. A stream is a protocol with an end of its own; the connection's end says nothing, since a proxy that "
    "gives up closes it too. The server's tests count one finish_reason per completion for every kind of end.",
)
