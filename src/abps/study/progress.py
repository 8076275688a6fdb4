"""What one sees while a study runs: a live table on the terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from abps.study.plan import PlannedRun


@dataclass
class _Row:
    """Where a method stands."""

    total: int = 0
    done: int = 0
    failed: int = 0
    auroc: list[float] = field(default_factory=list)
    vs_fedavg: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


#: Seconds between two lines where there is no terminal.
LINE_EVERY = 10.0


class StudyProgress:
    """Follows the runs of a study and estimates the time left."""

    def __init__(self, runs: Sequence[PlannedRun], console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._rows: dict[str, _Row] = {}
        self._waiting: dict[str, str] = {}
        self._now: dict[str, tuple[PlannedRun, int, int, float]] = {}
        self._began = time.monotonic()
        self._said = self._began
        self._lanes = 1
        self.note = ""
        for run in runs:
            self._rows.setdefault(run.label, _Row()).total += 1
        self._live = Live(
            console=self.console, get_renderable=self._render, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> StudyProgress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays, above the table; also when there is no terminal."""
        self.console.print(Text(text), soft_wrap=True)

    def lanes(self, count: int) -> None:
        """How many runs go on at the same time."""
        self._lanes = max(1, count)

    def there(self, run: PlannedRun, auroc: float, vs_fedavg: float) -> None:
        """A run that was finished before."""
        row = self._rows[run.label]
        row.done += 1
        if math.isfinite(auroc):
            row.auroc.append(auroc)
        row.vs_fedavg.append(vs_fedavg)

    def waiting(self, run: PlannedRun) -> None:
        """A run that is to be computed."""
        self._waiting[run.key] = run.label

    def round(self, run: PlannedRun, t: int, rounds: int) -> None:
        """A run finished its round t."""
        began = self._now[run.key][3] if run.key in self._now else time.monotonic()
        self._waiting.pop(run.key, None)
        self._now[run.key] = (run, t, rounds, began)

    def done(self, run: PlannedRun, auroc: float, vs_fedavg: float, seconds: float) -> None:
        """A run is finished and stored."""
        self._now.pop(run.key, None)
        self._waiting.pop(run.key, None)
        self.there(run, auroc, vs_fedavg)
        self._rows[run.label].seconds.append(seconds)
        if not self.console.is_terminal and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            self.say(self._line())

    def failed(self, run: PlannedRun, error: str) -> None:
        """A run failed."""
        self._now.pop(run.key, None)
        self._waiting.pop(run.key, None)
        self._rows[run.label].failed += 1
        self.say(f"failed: {run.label}, seed {run.seed}: {error}")

    def seconds_left(self) -> float | None:
        """An estimate from the runs so far; None before there is anything to go by."""
        known = [s for row in self._rows.values() for s in row.seconds]
        now = time.monotonic()
        left = 0.0
        for _, t, rounds, began in list(self._now.values()):
            if t > 0:
                known.append((now - began) / t * rounds)
                left += (now - began) / t * (rounds - t)
        if not known:
            return None
        usual = statistics.fmean(known)
        for label in list(self._waiting.values()):
            own = self._rows[label].seconds
            left += statistics.fmean(own) if own else usual
        return left / self._lanes

    def _render(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("method", "runs", "", "score so far", "bytes to FedAvg"):
            table.add_column(name, justify="left" if name in ("method", "") else "right")
        for label, row in self._rows.items():
            current = [(t, rounds) for run, t, rounds, _ in list(self._now.values()) if run.label == label]
            part = sum(t / rounds for t, rounds in current)
            mean = f"{statistics.fmean(row.auroc):.4f}" if row.auroc else ""
            cost = f"{statistics.fmean(row.vs_fedavg):.2f}×" if row.vs_fedavg else ""
            bar = ProgressBar(total=row.total, completed=row.done + part, width=24)
            title = Text(label, style="red" if row.failed else "bold" if current else "")
            table.add_row(title, f"{row.done}/{row.total}", bar, mean, cost)
        return Group(table, Text(f"{self._line()}  {self.note}", style="dim"))

    def _line(self) -> str:
        """How far the study is, and how long it may still take."""
        done, total = (sum(getattr(row, what) for row in self._rows.values()) for what in ("done", "total"))
        left = self.seconds_left()
        spent = clock(time.monotonic() - self._began)
        return f"{done} of {total} runs, {spent} spent, " + (
            "…" if left is None else f"about {clock(left)} left"
        )


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
