"""What one sees while a study runs: bars on the terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from abps.study.plan import PlannedRun

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 10.0


class StudyProgress:
    """Follows the runs of a study and estimates the time left."""

    def __init__(self, runs: Sequence[PlannedRun], console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"), console=self.console, transient=True, refresh_per_second=2,
        )  # fmt: skip
        labels = list(dict.fromkeys(run.label for run in runs))
        self._task = {
            label: self._bars.add_task(label, total=sum(run.label == label for run in runs), score="")
            for label in labels
        }
        self._all = self._bars.add_task("all", total=len(runs), score="")
        self._scores: dict[str, list[float]] = {label: [] for label in labels}
        self._begun: dict[str, tuple[float, float]] = {}
        self._seconds: list[float] = []
        self._waiting: set[str] = set()
        self._began = self._said = time.monotonic()
        self._lanes = 1
        self.note = ""

    def __enter__(self) -> StudyProgress:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:  # elsewhere it would print an empty line
            self._bars.stop()

    def say(self, text: str) -> None:
        """A line that stays, above the bars; also when there is no terminal."""
        self.console.print(Text(text), soft_wrap=True)

    def lanes(self, count: int) -> None:
        """How many runs go on at the same time."""
        self._lanes = max(1, count)

    def there(self, run: PlannedRun, score: float) -> None:
        """A run that was finished before."""
        scores = self._scores[run.label]
        if score == score:
            scores.append(score)
        mean = f"{statistics.fmean(scores):.4f}" if scores else ""
        self._bars.update(self._task[run.label], advance=1, score=mean)
        self._bars.advance(self._all)
        self._bars.update(self._all, score=f"{self._line()}  {self.note}")

    def waiting(self, run: PlannedRun) -> None:
        """A run that is to be computed."""
        self._waiting.add(run.key)

    def round(self, run: PlannedRun, t: int, rounds: int) -> None:
        """A run finished its round t."""
        self._waiting.discard(run.key)
        began = self._begun[run.key][0] if run.key in self._begun else time.monotonic()
        self._begun[run.key] = (began, t / rounds)

    def done(self, run: PlannedRun, score: float, seconds: float) -> None:
        """A run is finished and stored."""
        self._begun.pop(run.key, None)
        self._waiting.discard(run.key)
        self._seconds.append(seconds)
        self.there(run, score)
        if not self.console.is_terminal and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            self.say(self._line())

    def failed(self, run: PlannedRun, error: str) -> None:
        """A run failed."""
        self._begun.pop(run.key, None)
        self._waiting.discard(run.key)
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
        whole, left = self._bars.tasks[self._all], self.seconds_left()
        spent = clock(time.monotonic() - self._began)
        to_come = "" if left == 0 else ", …" if left is None else f", about {clock(left)} left"
        return f"{whole.completed:.0f} of {whole.total:.0f} runs, {spent} spent{to_come}"


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
