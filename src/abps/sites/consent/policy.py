"""What a site lets any study ask of it, before anybody is asked to approve it.

Part of the site's own file. A study that asks for more is refused without a question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from abps.core.errors import RequestError, validate
from abps.privacy.small_counts import MIN_CELL

if TYPE_CHECKING:
    from abps.sites.consent.agreement import Agreement


@dataclass(frozen=True)
class Policy:
    """approve: ``ask`` (a person decides on every study) or ``auto`` (all within these bounds: a rehearsal).

    server: whether methods with a server are allowed, which sees every model.
    methods, models: names that are allowed; none: all that run between sites.
    rows, events: the fewest rows, and rows of either outcome, that this site takes part with.
    epochs, rounds: the most local epochs in a round, and rounds of a study.
    hours: how long one job may run here.  bytes: the most that may leave this site in a study.
    floor: what is told of fewer patients than this must not leave; a codebook may ask for more, not for less.
    wire: the oldest minor version of the wire format that is spoken here.
    """

    approve: Literal["ask", "auto"] = "ask"
    server: bool = False
    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    rows: int = 50
    events: int = 10
    epochs: int = 100
    rounds: int = 1000
    hours: float = 48.0
    bytes: int = 2_000_000_000
    floor: int = MIN_CELL
    wire: int = 0

    def __post_init__(self) -> None:
        validate(self)
        for name in ("methods", "models"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def check(self, agreement: Agreement) -> None:
        """Refuse, with one sentence, a study that asks for more than this."""
        config = agreement.config()
        training = config.training
        if config.kind == "star" and not self.server:
            raise RequestError(
                f"{agreement.method!r} has a server that sees a site's weights, and this site's policy does "
                'not allow that; say "server": true in its policy if it is wanted'
            )
        if self.methods and agreement.method not in self.methods:
            raise RequestError(
                f"the method {agreement.method!r} is not among those that this site's policy allows "
                f"({', '.join(self.methods)})"
            )
        if self.models and training.model not in self.models:
            raise RequestError(
                f"the model {training.model!r} is not among those that this site's policy allows "
                f"({', '.join(self.models)})"
            )
        for asked, most, what in (
            (training.epochs, self.epochs, "epochs in a round"),
            (agreement.rounds, self.rounds, "rounds"),
        ):
            if asked > most:
                raise RequestError(f"the study asks for {asked} {what}; this site's policy allows {most}")
        floor = agreement.book.min_cell
        if floor < self.floor:
            raise RequestError(
                f"the codebook's floor is {floor} patients, and this site's policy asks for {self.floor}"
            )

    def check_rows(self, rows: int, telling: int) -> None:
        """Refuse to take part with too few rows, or too few that tell something: of the rarer outcome, or
        events of survival."""
        if rows < self.rows:
            raise RequestError(
                f"the table has {rows} rows that the study can use; this site's policy asks for {self.rows}"
            )
        if telling < self.events:
            raise RequestError(
                f"the rarer outcome has {telling} rows; this site's policy asks for {self.events}"
            )
