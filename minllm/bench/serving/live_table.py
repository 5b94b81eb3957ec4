"""A live table of the running benchmark on a terminal: progress, queue lengths, KV cache, throughput of the last second."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from minllm.bench.serving.run import Progress

REFRESH_SECONDS = 0.25  # drawing after every step would slow down the engine, which shares the thread
WINDOW_SECONDS = 1.0  # throughput is averaged over this time


class LiveTable:
    """Draws a run's progress, at most once per REFRESH_SECONDS."""

    def __init__(self, live: Live, title: str):
        self.live, self.title = live, title
        self.window: deque[tuple[float, int]] = deque()  # (seconds of the run, output tokens until then)
        self.drawn = -REFRESH_SECONDS

    def __call__(self, progress: Progress) -> None:
        """Draw, unless the last drawing is recent."""
        now = progress.sample.time
        self.window.append((now, progress.output_tokens))
        while now - self.window[0][0] > WINDOW_SECONDS and len(self.window) > 1:
            self.window.popleft()
        if now - self.drawn >= REFRESH_SECONDS:
            self.drawn = now
            self.live.update(self.table(progress), refresh=True)

    def table(self, progress: Progress) -> Table:
        """The table for the current progress."""
        sample, (since, tokens) = progress.sample, self.window[0]
        rate = (progress.output_tokens - tokens) / (sample.time - since) if sample.time > since else 0.0
        table = Table("time", "requests", "running", "waiting", "KV cache", "preempted", "output tokens/s", title=self.title)
        table.add_row(
            f"{sample.time:.1f} s",
            f"{progress.ended} of {progress.num_requests}",
            str(sample.num_running),
            str(sample.num_waiting),
            f"{sample.kv_cache_usage:.0%}",
            str(sample.num_preemptions),
            f"{rate:,.0f}",
        )
        return table


@contextmanager
def live_table(title: str, console: Console | None = None) -> Iterator[Callable[[Progress], None] | None]:
    """A display for `serve(on_step=...)` on standard error, removed at the end; None if that is not a terminal."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live, title)
