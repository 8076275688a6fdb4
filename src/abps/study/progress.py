"""What one sees while a study runs: a bar on the terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from abps.study.plan import PlannedRun

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 10.0


class StudyProgress:
    def __init__(self, runs: Sequence[PlannedRun], console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        said = TextColumn("{task.description}", markup=False)
        self._bar = Progress(
            BarColumn(24), said, console=self.console, transient=True, refresh_per_second=2,
            disable=not self.console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=len(runs))
        self._begun: dict[str, tuple[float, float]] = {}
        self._seconds: list[float] = []
        self._waiting: set[str] = set()
        self._began = self._said = time.monotonic()
        self._lanes = 1
        self.note = ""

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays, above the bar; also when there is no terminal."""
        self.console.print(Text(text), soft_wrap=True)

    def lanes(self, count: int) -> None:
        self._lanes = max(1, count)

    def there(self, run: PlannedRun, score: float) -> None:
        self._bar.advance(self._task)
        last = f"{run.label} {score:.4f}" if math.isfinite(score) else run.label
        self._bar.update(self._task, description=f"{self._line()}  {last}  {self.note}")

    def waiting(self, run: PlannedRun) -> None:
        self._waiting.add(run.key)

    def round(self, run: PlannedRun, t: int, rounds: int) -> None:
        self._waiting.discard(run.key)
        began, _ = self._begun.get(run.key, (time.monotonic(), 0.0))
        self._begun[run.key] = (began, t / rounds)

    def _ended(self, run: PlannedRun) -> None:
        self._begun.pop(run.key, None)
        self._waiting.discard(run.key)

    def done(self, run: PlannedRun, score: float, seconds: float) -> None:
        self._ended(run)
        self._seconds.append(seconds)
        self.there(run, score)
        if not self.console.is_terminal and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            self.say(self._line())

    def failed(self, run: PlannedRun, error: str) -> None:
        self._ended(run)
        self.say(f"failed: {run.label}, seed {run.seed}: {error}")

    def seconds_left(self) -> float | None:
        """An estimate from the runs so far; None before there is anything to go by."""
        now = time.monotonic()
        running = [((now - began) / share, share) for began, share in self._begun.values() if share > 0]
        known = [*self._seconds, *(whole for whole, _ in running)]
        if not known:
            return None
        left = sum(whole * (1 - share) for whole, share in running)
        return (left + len(self._waiting) * statistics.fmean(known)) / self._lanes

    def _line(self) -> str:
        """How far the study is, and how long it may still take."""
        task, left = self._bar.tasks[self._task], self.seconds_left()
        spent = clock(time.monotonic() - self._began)
        to_come = "" if left == 0 else ", …" if left is None else f", about {clock(left)} left"
        return f"{task.completed:.0f} of {task.total:.0f} runs, {spent} spent{to_come}"


def clock(seconds: float) -> str:
    """Seconds as a person says them.

    >>> clock(42), clock(125), clock(7300)
    ('42 s', '2 min 05 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
