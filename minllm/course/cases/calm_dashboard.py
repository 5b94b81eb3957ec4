"""The event loop of a server: it reads the bodies of requests, and passes on the tokens of all streams. Sometimes all streams stop."""

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch

STEP_MS, PARSE_MS = 20.0, 25.0  # between two tokens of the engine; to parse a body of a megabyte
LIMIT_MS = 30.0


def read_bodies(bodies, parse):
    """Parse the bodies that have arrived. A `yield` gives the event loop to others; it comes back when they have had their turn."""
    for body in bodies:
        parse(body)
    yield


def mended_read_bodies(bodies, parse):
    """The same, one body per turn."""
    for body in bodies:
        parse(body)
        yield


class Loop:
    """An event loop on a simulated clock, in milliseconds. One stream wants to pass on each of the engine's tokens."""

    def __init__(self):
        self.now, self.lags = 0.0, []

    def parse(self, body):
        """Parsing keeps the loop's thread busy."""
        self.now += PARSE_MS * len(body)

    def run(self, task):
        """Run a task; between its turns the stream passes on the tokens that have become due."""
        due = STEP_MS
        for _ in task:
            while due <= self.now:
                self.lags.append(self.now - due)
                due += STEP_MS


def examine(read_bodies):
    """Bodies of a megabyte, one at a time and then twenty together."""
    right = []
    for count in (1, 20):
        loop = Loop()
        loop.run(read_bodies(["x"] * count, loop.parse))
        worst = max(loop.lags)
        if worst > LIMIT_MS:
            raise Mismatch(
                "\n".join([*right, f"{count} bodies: the engine makes a token every {STEP_MS:.0f} ms, clients get one {worst:.0f} ms late"])
            )
        right.append(f"{count} body: right")


CASE = Case(
    name="calm_dashboard",
    lesson=22,
    title="The dashboard is calm",
    story="Every few minutes all answers stop for half a second and then go on with a jump. The dashboard shows nothing: the engine's time "
    "per step is flat, so are its queue and its TTFT, and the GPU is as busy as ever. It began when a customer started to send whole "
    "documents, twenty requests at a time. Their own requests are answered well.",
    hint="Between the engine and a client is a thread that does many things. Which of its tasks gives the others no turn?",
    broken=read_bodies,
    mended=mended_read_bodies,
    examine=examine,
    guilty="parse(body)",
    solution="An event loop does one thing at a time. Parsing twenty bodies of a megabyte takes half a second, and the tokens of all "
    "streams wait for it, though the engine has made them. Engine metrics are taken on the engine's side, so they cannot show it. With "
    "one body per turn nobody waits longer than for one of them, whose size a limit bounds. Measure the loop itself: a timer that should "
    "fire every 20 ms, and how late it fires. The server exports that as `minllm:event_loop_lag_seconds`.",
)
