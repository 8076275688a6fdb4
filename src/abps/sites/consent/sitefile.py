"""A site's own file: where its table and its store are, and what it lets any study ask of it; JSON that
``abps site init`` writes and that never leaves the site. Jobs cannot name paths: the site decides which table
a study gets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from abps import files
from abps.core.errors import RequestError, validate
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.harmonise import map_digest, map_path
from abps.data.outcome import EncodedLabel
from abps.data.table import own_outcome, own_table
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent.keys import read_signer
from abps.sites.store.audit import Journal
from abps.wire.admission import Limits

if TYPE_CHECKING:
    from abps.sites.consent.agreement import Agreement

FILE = "abps-site.json"  # in a site's folder or in the ``local`` folder of its startup kit
CODEBOOK = "codebook.json"  # what a site proposes as the common columns, beside its own file

_SCHEMA = "abps.site/1"


@dataclass(frozen=True)
class Policy:
    """What any study may ask of this site: one that asks for more is refused before anybody reads it.

    approve: ``ask`` (a person decides on every study) or ``auto`` (all within these bounds: a rehearsal).
    methods, models: names that are allowed; none: all that run between sites.  rows, events: the fewest rows,
    and rows of either outcome, that this site takes part with.  epochs, rounds: the most local epochs in a
    round, and rounds of a study.  hours: how long one job may run here.  bytes: the most that may leave this
    site in a study.  floor: the minimum cell size, in patients; a codebook may ask for more, not for less.
    people: how many different people must approve a study (2: four eyes).
    """

    approve: Literal["ask", "auto"] = "ask"
    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    rows: int = 50
    events: int = 10
    epochs: int = 100
    rounds: int = 1000
    hours: float = 48.0
    bytes: int = 2_000_000_000
    floor: int = MIN_CELL
    people: int = 1

    def __post_init__(self) -> None:
        validate(self)

    def check(self, agreement: Agreement) -> None:
        training = agreement.config().training
        named = {"method": (agreement.method, self.methods), "model": (str(training.model), self.models)}
        for what, (name, allowed) in named.items():
            if allowed and name not in allowed:
                names = ", ".join(allowed)
                raise RequestError(f"the {what} {name!r} is not among those that the policy allows ({names})")
        epochs, rounds = (training.epochs, self.epochs), (agreement.rounds, self.rounds)
        for what, (asked, most) in {"epochs in a round": epochs, "rounds": rounds}.items():
            if asked > most:
                raise RequestError(f"the study asks for {asked} {what}; this site's policy allows {most}")
        floor = agreement.book.min_cell
        if floor < self.floor:
            raise RequestError(f"the minimum cell size is {floor} patients; the policy asks for {self.floor}")

    def check_rows(self, rows: int, events: int) -> None:
        """Refuse to take part with too few rows, or too few of the rarer outcome (events of survival)."""
        if rows < self.rows:
            raise RequestError(f"the study can use {rows} rows; this site's policy asks for {self.rows}")
        if events < self.events:
            raise RequestError(f"the rarer outcome has {events} rows; the policy asks for {self.events}")


@dataclass(frozen=True)
class SiteFile:
    """A site's own settings. table, store: paths.  label, patient, time, drop: columns of the table.

    limits: what it tolerates of a peer.  threads: cores for training.  allow: packages besides abps whose
    methods, codecs and goals a job may name; nothing else is imported.  another_table: whether the table may
    be another than in earlier jobs of a study.  policy: what any study may ask of this site.  positive: the
    label's value that is the event.  outcome, duration: what the label is, and the column with the time to
    the event, if it is no event or not.  proxy: an HTTP proxy on the way to the relay, http://HOST:PORT;
    none: as the environment says.  harmonised: the digest of the table's map (:mod:`abps.data.harmonise`)
    when the codebook was written.
    """

    site: str
    table: str
    label: str
    store: str
    patient: str | None = None
    time: str | None = None
    drop: tuple[str, ...] = ()
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    allow: tuple[str, ...] = ()
    another_table: bool = False
    policy: Policy = field(default_factory=Policy)
    positive: str | None = None
    outcome: str | None = None
    duration: str | None = None
    proxy: str = ""
    harmonised: str = ""

    def write(self, folder: Path) -> Path:
        path = Path(folder) / FILE
        files.write_json(path, {"schema": _SCHEMA, **asdict(self)})
        return path

    def store_of(self, study: str) -> Path:
        return Path(self.store) / f"{safe_name(study)}.sqlite"

    def journal(self, where: Path) -> Journal:
        return Journal(Path(self.store), read_signer(where))

    def read_table(self, book: Codebook | None = None) -> Federation:
        """The site's table, as a federation of one; for a study, by the map of its codebook."""
        found = map_digest(self.table)
        if book is not None and (found != self.harmonised or {found} - {"", *book.harmonised}):
            why = f"{map_path(self.table).name} is not the map that the study's codebook was made with"
            what = "run `abps site init` and share the codebook again, or put the map back"
            raise RequestError(f"{self.site}: {why}; {what}")
        return own_table(
            self.table, self.site, self.label, book, patient=self.patient, time=self.time, drop=self.drop,
            positive=self.positive, outcome=self.outcome, duration=self.duration,
        )  # fmt: skip

    def labelled(self) -> EncodedLabel:
        return own_outcome(
            self.table, self.label, positive=self.positive, outcome=self.outcome, duration=self.duration
        )


def safe_name(study: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in study)[:100]


def read(path: Path) -> SiteFile:
    if not Path(path).is_file():
        raise RequestError(f"{path}: no such file; write it with `abps site init`")
    try:
        data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA:
            raise ValueError("another schema")
        for part, kind in {"": SiteFile, "policy": Policy, "limits": Limits}.items():
            if unknown := set(data.get(part, {}) if part else data) - {f.name for f in fields(kind)}:
                raise ValueError(f"unknown entries {', '.join(sorted(unknown))}")
        return msgspec.convert(data, SiteFile)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RequestError(f"{path} is not a site's file ({error}); run `abps site init`") from error


def find(site: str, local: Path) -> SiteFile:
    """The file of the site that runs here, in the ``local`` folder of its startup kit."""
    path = local / FILE
    if not path.is_file():
        raise RequestError(f"{site}: no {FILE} in {local}; run `abps site init` there")
    found = read(path)
    if found.site != site:
        raise RequestError(f"{path} is of the site {found.site!r}, and this is {site!r}; init it again")
    return found
