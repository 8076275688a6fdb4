"""Broken inputs by the hundred thousand: whatever comes in, the answer is a result or one clear refusal.

    python tools/fuzz.py --cases 300000 --seed 1

Every target takes bytes that began as something valid and were then cut, joined, overwritten and bent. It
may return, or raise one of the errors that say what is wrong. Anything else is a finding: its bytes are
written to ``tests/fuzz_cases`` under the target's name, where a test tries them ever after.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from abps.core.errors import RequestError
from abps.core.streams import center_id
from abps.data.codebook import Codebook, Column
from abps.data.scales import Scale
from abps.data.table import read_table
from abps.engine.result import load_run
from abps.lab.rivals.corrected import Momentum
from abps.methods.state_bytes import StateError, freeze, thaw
from abps.privacy.budget import Account, PrivacyLedger, Release, recount
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.coordinator import scheduler
from abps.sites.node.measuring import with_scales
from abps.sites.protocol import commands
from abps.study.records import StudyFolder
from abps.wire import admission, messages
from abps.wire.messages import MessageError
from abps.wire.number_lists import Field, NumberList, NumberListError

TESTS = Path(__file__).resolve().parents[1] / "tests"
CASES = TESTS / "fuzz_cases"

#: Numbers that break things.
EDGES = (0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (
    b"nan",
    b"inf",
    b"-1",
    b"1e400",
    b"null",
    b"[]",
    b"{}",
    b'"',
    b",",
    b";",
    b"\n",
    b"\x00",
    b"=cmd()",
    b"\xff\xfe",
)

#: Values that take the place of others in JSON.
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**70, -(2**70), 1e308, float("nan"), float("inf"), "", "x", "\x00",
    [], {}, [[]], {"a": 1},
)  # fmt: skip


def bent(data: bytes, chance: random.Random) -> bytes:
    """Bytes with one to four accidents."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        kind = chance.randrange(8)
        if kind == 0 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del made[at:]
        elif kind == 2:
            made[at:at] = chance.choice(WORDS)
        elif kind == 3:
            made[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(12)))
        elif kind == 4:
            size = chance.choice((1, 2, 4, 8))
            number = struct.pack("<Q", chance.choice(EDGES))[:size]
            made[at : at + size] = number
        elif kind == 5:
            other = chance.randrange(len(made) + 1)
            low, high = sorted((at, other))
            made[low:high] = b""
        elif kind == 6:
            made += made[: chance.randrange(len(made) + 1)]
        elif made:
            made[at % len(made)] = chance.randrange(256)
    return bytes(made[:100_000])


def bent_json(data: bytes, chance: random.Random) -> bytes:
    """JSON with one to three values replaced, left out or cut; now and then its bytes are bent as well."""
    value = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        value = _bent_value(value, chance)
    made = json.dumps(value).encode()
    return bent(made, chance) if chance.random() < 0.1 else made


def _bent_value(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != name}
        return value | {name: _bent_value(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:at]
        return [*value[:at], _bent_value(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD)


#: What a column of a table can hold, and what is put in its cells.
KINDS: dict[str, Any] = {
    "whole": pl.Int64,
    "small": pl.UInt8,
    "number": pl.Float64,
    "text": pl.String,
    "time": pl.Datetime("us"),
    "fine time": pl.Datetime("ns"),
    "zoned time": pl.Datetime("us", "Europe/Berlin"),
    "day": pl.Date,
    "truth": pl.Boolean,
    "bytes": pl.Binary,
    "list": pl.List(pl.Int64),
    "nothing": pl.Null,
    "decimal": pl.Decimal(18, 3),
    "length": pl.Duration("us"),
    "category": pl.Categorical(),
}
CELLS: tuple[Any, ...] = (
    None, 0, -1, 1, 2**63 - 1, -(2**63), 2**31, 0.5, 1e308, -1e308, float("nan"), float("inf"), "", " ", "x",
    "\x00", "=cmd()", "<b>", "é" * 300, "2150-02-30", "0001-01-01T00:00:00", "9999-12-31T23:59:59",
    "1066-10-14T09:00:00", "2150-03-01T10:00:00+02:00", "ICU_ADMISSION//", "MEDS_BIRTH", "//",
)  # fmt: skip


def bent_tables(data: bytes, chance: random.Random) -> bytes:
    """A folder of typed tables (JSON: file -> column -> kind, cells) with one to four accidents."""
    made = json.loads(data)
    for _ in range(chance.randint(1, 4)):
        name = chance.choice(list(made))
        table, kind = made[name], chance.randrange(12)
        if kind == 0 or not isinstance(table, dict):
            # a folder, a link to nowhere or to itself, an empty file, a damaged one; or none
            made[name] = chance.choice((None, "nowhere", name, [0], [80, 65, 82, 49, 0]))
            if chance.random() < 0.3 and len(made) > 1:
                del made[name]
            continue
        if not table:
            continue
        column = chance.choice(list(table))
        form, cells = table[column]
        if kind == 1:
            del table[column]
        elif kind == 2:
            table[chance.choice(("", "x y", column.upper(), '"', "a,b", "'"))] = table.pop(column)
        elif kind in (3, 4):
            table[column] = [chance.choice(list(KINDS)), cells]
        elif kind == 5:  # no row, or every row twice
            rows = chance.choice((0, 2))
            made[name] = {c: [f, many * rows] for c, (f, many) in table.items()}
        elif kind == 6:  # nothing but one value
            table[column] = [form, [chance.choice(CELLS)] * len(cells)]
        elif kind == 7 and cells:  # one row again
            at = chance.randrange(len(cells))
            made[name] = {c: [f, [*many, *many[at : at + 1]]] for c, (f, many) in table.items()}
        elif cells:
            at = chance.randrange(len(cells))
            table[column] = [form, [*cells[:at], chance.choice(CELLS), *cells[at + 1 :]]]
    return json.dumps(made).encode()


def write_tables(data: bytes, root: Path) -> bool:
    """What :func:`bent_tables` tells, as Parquet and CSV files. False where no program could have written
    it."""
    for name, table in json.loads(data).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if table is None:
            path.mkdir(exist_ok=True)
        elif isinstance(table, str):
            path.symlink_to(table)
        elif isinstance(table, list):
            path.write_bytes(bytes(table))
        else:
            try:
                frame = pl.DataFrame([_series(c, form, cells) for c, (form, cells) in table.items()])
                frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
            except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
                return False
    return True


def _series(name: str, form: str, cells: list[Any]) -> pl.Series:
    """A column: cells that are not of its kind are missing."""
    kind = KINDS[form]
    if isinstance(kind, pl.Datetime | pl.Date):
        text = pl.Series(name, [None if c is None else str(c) for c in cells], pl.String)
        return text.str.to_datetime(strict=False, time_unit="us").cast(kind, strict=False)
    return pl.Series(name, cells, kind, strict=False)


@dataclass(frozen=True)
class Target:
    """What is tried: valid beginnings, what takes the bytes, which errors say what is wrong, how much of
    the campaign's cases it gets, and how its bytes are bent."""

    name: str
    seeds: tuple[bytes, ...]
    take: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    share: float = 1.0
    bend: Callable[[bytes, random.Random], bytes] = bent


def _json(take: Callable[[Any], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None  # who reads a file says that itself; here its content is tried
        return take(value)

    return read


def _answered(value: Any) -> object:
    """Every check of the scheduler on every value: what fails must fail as nonsense."""
    return [
        commands.check_all({"x": value}, check)
        for check in (
            lambda v: commands.hello(v, 50),
            lambda v: commands.whole(v, 0, 5),
            commands.progress,
            commands.concluded,
            scheduler._introduced,
        )
    ]


class Files:
    """Readers of files and folders, each with a place of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def result(self, data: bytes) -> object:
        """A run's result."""
        (self.place / "result.json").write_bytes(data)
        return load_run(self.place)

    def study(self, data: bytes) -> object:
        """A study's plan."""
        folder = StudyFolder(self.place)
        folder.path.write_bytes(data)
        return folder.read()

    def site(self, data: bytes) -> object:
        """A site's own file."""
        path = self.place / sitefile.FILE
        path.write_bytes(data)
        return sitefile.read(path)

    def table(self, data: bytes) -> object:
        """A table of one's own."""
        path = self.place / "table.csv"
        path.write_bytes(data)
        return read_table(path, label="died", center="hospital", min_stays=1)

    def cohort(self, build: Callable[[Path], object]) -> Callable[[bytes], object]:
        """A reader of a folder of tables, which lie one after the other in the bytes."""

        def read(data: bytes) -> object:
            with tempfile.TemporaryDirectory(dir=self.place) as root:
                for part in data.split(_TABLE)[1:]:
                    # The names of files are those of the first line, as far as they are names.
                    line, _, content = part.partition(b"\n")
                    words = [w for w in line.decode("ascii", "ignore").split("/") if w.isprintable()]
                    path = Path(root, *(w for w in words if w.strip(".")))
                    if path == Path(root) or path.is_dir() or any(p.is_file() for p in path.parents):
                        continue
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                return build(Path(root))

        return read

    def typed(self, build: Callable[[Path], Any]) -> Callable[[bytes], object]:
        """A reader of a folder of typed tables; of some cohorts the files of the command are made too, and
        of one that is refused nothing may be left."""
        from abps.cohorts.cohort_page import write_cohort

        def read(data: bytes) -> object:
            with tempfile.TemporaryDirectory(dir=self.place) as folder:
                source, out = Path(folder) / "source", Path(folder) / "out"
                source.mkdir()
                if not write_tables(data, source):
                    return None
                made = build(source)
                if zlib.crc32(data) % 16 == 0:
                    write_cohort(made, "a cohort", out / "cohort.parquet")
                return made

        return read

    def records(self, data: bytes) -> object:
        """Records of PhysioNet 2012: one patient, and the outcomes."""
        from abps.cohorts import physionet2012

        root = self.place / "physionet"
        (root / "set-a").mkdir(parents=True, exist_ok=True)
        record, _, outcome = data.partition(b"\n---\n")
        (root / "set-a" / "132539.txt").write_bytes(record)
        (root / "Outcomes-a.txt").write_bytes(outcome)
        return physionet2012.build(root)


#: What stands before each table of a folder.
_TABLE = b"\n=== "


def _tables(write: Callable[[Path], Path]) -> bytes:
    """A folder of tables as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        root = write(Path(folder))
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return b"".join(
            _TABLE + path.relative_to(root).as_posix().encode() + b"\n" + path.read_bytes() for path in paths
        )


def _made() -> Any:
    """The makers of small cohorts that the tests use."""
    spec = importlib.util.spec_from_file_location("made_cohorts", TESTS / "cohorts" / "made.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def targets(place: Path) -> list[Target]:
    """All targets; files go to ``place``."""
    from abps.cohorts import eicu, mimiciv

    files, made = Files(place), _made()
    who = center_id("bea")
    rng = np.random.default_rng(0)
    said = [
        messages.pack_request(2, 3, who),
        messages.pack_upload(b"abc", 3, who),
        messages.pack_broadcast(b"abc", 3, who),
        messages.pack_head(messages.Head("bea", 7, 3, bytes(32), b"signature", 1), who),
    ]

    def any_message(data: bytes) -> None:
        for kind in messages.MessageKind:
            try:
                messages.unpack(data, kind)
                messages.unpack_head(data, "bea")
            except MessageError:
                continue

    def admitted(data: bytes) -> object:
        return admission.admit_upload(data, admission.Origin("bea", ("bea",), 3))

    forms = (
        Field("single", 3),
        Field("half", 4),
        Field("share", 2),
        Field("place", 2),
        Field("small", 8, 2),
    )
    numerals = NumberList.of(np.arange(27, dtype=float), forms).data
    book = Codebook(
        (Column("age", "number"), Column("ward", "level", "A"), Column("dm", "flag")), ("dm",), True
    )
    with_statistics = replace(book, statistics={"age": Scale(60.0, 10.0, 60.0)})
    agreement = Agreement("s", "fedavg", book, 3, 5, {})
    agreed, signed = agreement.to_json(), SignedProposal(Proposal(agreement, ("a", "b"))).to_json()
    lacking = replace(agreement, settings={"secure": "yes", "model": "linear"})
    scales = {
        "statistics": {"age": {"center": 60.0, "spread": 10.0, "fill": 61.0}},
        "outcome": None,
        "summarised": {"seed": 3, "bytes": {"a": 20, "b": 20}},
    }
    own = {"schema": "abps.site/1", **asdict(sitefile.SiteFile("a", "t.csv", "died", "studies"))}
    remembered = freeze(Momentum(*rng.normal(size=(2, 6)).astype(np.float32)))
    account = Account(3.0, 1e-5, (Release(1, "training", 1.0, 0.5, 3),))
    ledger = PrivacyLedger({"x": account}, ("nothing",)).to_json()
    hello = {"round": 1, "agreement": "a", "rows": 5, "edges": 0, "validation": {"1": 0.5}}
    sums = {"bytes": 1, "partners": 1}
    return [
        Target("admission", tuple(said), admitted, (admission.Refusal,), 4),
        Target("messages", tuple(said), any_message, (), 6),
        Target("numerals", (numerals,), NumberList.read, (NumberListError,), 3),
        Target(
            "codebooks",
            (_bytes(book.to_json()), _bytes(with_statistics.to_json())),
            _json(Codebook.from_json),
            (RequestError,),
            3,
            bent_json,
        ),
        Target("agreements", (_bytes(agreed),), _json(Agreement.from_json), (RequestError,), 2, bent_json),
        Target(
            "proposals", (_bytes(signed),), _json(SignedProposal.from_json), (RequestError,), 1, bent_json
        ),
        Target(
            "scales",
            (_bytes(scales),),
            _json(lambda v: with_scales(lacking, v)),
            (RequestError,),
            1,
            bent_json,
        ),
        Target("sitefiles", (_bytes(own),), files.site, (RequestError,), 1, bent_json),
        Target("states", (remembered,), lambda d: thaw(Momentum, d), (StateError,), 2),
        Target("ledgers", (_bytes(ledger),), _json(recount), (RequestError,), 1, bent_json),
        Target("answers", (_bytes(hello), _bytes(sums)), _json(_answered), (), 3, bent_json),
        Target("results", (_bytes(_result()),), files.result, (RequestError,), 0.6, bent_json),
        Target(
            "studies",
            (b'{"schema": "abps.study/1", "runs": [], "digest": "x"}',),
            files.study,
            (RequestError,),
            0.4,
            bent_json,
        ),
        Target("tables", (_table(),), files.table, (RequestError,), 0.6),
        Target("records", (_record(),), files.records, (RequestError,), 0.4),
        Target("eicu", (_tables(made.eicu),), files.cohort(eicu.build), (RequestError,), 0.03),
        Target("mimic", (_tables(made.mimic),), files.cohort(mimiciv.build), (RequestError,), 0.03),
        *_exchange_formats(files, made),
    ]


def _exchange_formats(files: Files, made: Any) -> list[Target]:
    """The readers of OMOP, MEDS and Heart: their bytes bent, and their tables with other types and cells."""
    from abps.cohorts import heart, meds, omop

    refused = (RequestError,)

    def cdm(folder: Path) -> object:
        return omop.build(folder, omop.OmopOptions(features=("labs", "gcs")))

    def events(folder: Path) -> object:
        return meds.build(folder, meds.MedsOptions(features=("labs", "gcs", "urine")))

    source = made.events_file(files.place / "meds")

    def mapped(data: bytes) -> object:
        path = files.place / "map.json"
        path.write_bytes(data)
        return meds.build(source, meds.MedsOptions(map_file=str(path), features=("labs", "gcs", "urine")))

    tables = _typed(made.cdm())
    parquet = _bytes({f"{name}.parquet": table for name, table in tables.items()})
    text = _bytes({f"{name.upper()}.csv": table for name, table in tables.items()})
    only = _typed({"data/0.parquet": made.events()})
    return [
        Target("omop", (parquet, text), files.typed(cdm), refused, 0.03, bent_tables),
        Target("omopbytes", (_tables(made.cdm_files),), files.cohort(cdm), refused, 0.03),
        Target("meds", (_bytes(only),), files.typed(events), refused, 0.03, bent_tables),
        Target("medsbytes", (_tables(made.events_file),), files.cohort(events), refused, 0.03),
        Target("maps", (_shipped("meds_mimiciv"),), mapped, refused, 0.03, bent_json),
        Target("heart", (_tables(made.heart),), files.cohort(heart.build), refused, 0.1),
    ]


def _shipped(name: str) -> bytes:
    from importlib import resources

    return resources.files("abps.cohorts").joinpath("tables", f"{name}.json").read_bytes()


def _typed(frames: dict[str, pl.DataFrame]) -> dict[str, Any]:
    """Frames as :func:`bent_tables` takes them."""
    kinds = {kind: name for name, kind in KINDS.items()}
    return {
        name: {
            column.name: [
                kinds[column.dtype],
                [c.isoformat() if hasattr(c, "isoformat") else c for c in column.to_list()],
            ]
            for column in frame
        }
        for name, frame in frames.items()
    }


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def _result() -> dict[str, Any]:
    from abps.data.table import federate
    from abps.engine.simulate import simulate
    from abps.lab.synthetic import builtin_table

    frame, roles = builtin_table("icu-synthetic:centers=6,stays=400")
    settings = {"model": "linear", "standardise": "own", "epochs": 1}
    run = simulate(federate(frame, roles, "icu", 1), "fedavg", 3, 1, settings=settings)
    return run.to_json()


def _table() -> bytes:
    rows = ["hospital;age;lactate;ward;died"]
    rows += [f"h{i % 3};{40 + i % 50};{1 + i % 7}.5;{'AB'[i % 2]};{int(i % 4 == 0)}" for i in range(60)]
    return "\n".join(rows).encode()


def _record() -> bytes:
    record = "Time,Parameter,Value\n00:00,RecordID,132539\n00:00,Age,54\n00:00,Gender,0\n00:07,HR,73\n"
    outcome = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n132539,6,1,5,-1,0\n"
    return f"{record}\n---\n{outcome}".encode()


def tried(target: Target, data: bytes) -> str:
    """Nothing, or what went wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.take(data)
    except target.refusals as refusal:
        return f"  File: more than one line\n{refusal}" if "\n" in str(refusal) else ""
    except Exception:
        return traceback.format_exc()
    return ""


def campaign(target: Target, cases: int, seed: int) -> list[tuple[bytes, str]]:
    """So many broken inputs; those that were not refused clearly, one for every place in the code."""
    chance = random.Random(f"{seed} {target.name}")
    pool = list(target.seeds)
    found: dict[str, tuple[bytes, str]] = {}
    for _ in range(cases):
        start = chance.choice(pool)
        data = target.bend(start, chance)
        wrong = tried(target, data)
        if wrong:
            place = [line for line in wrong.splitlines() if line.startswith("  File")][-1]
            found.setdefault(place, (data, wrong))
        elif target.bend is bent and chance.random() < 0.001:
            pool = [*target.seeds, *pool[-20:], data]  # what got through is bent further
    return list(found.values())


def main() -> None:
    """A campaign over all targets, or some."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cases", type=int, default=300_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", default="")
    given = words.parse_args()
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = [t for t in targets(Path(folder)) if given.only in ("", t.name)]
        whole = sum(t.share for t in chosen)
        for target in chosen:
            cases = max(1, round(given.cases * target.share / whole))
            began = time.perf_counter()
            wrong = campaign(target, cases, given.seed)
            print(
                f"{target.name:11} {cases:8,} cases, {len(wrong)} findings, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
            for k, (data, why) in enumerate(wrong):
                print(why, file=sys.stderr)
                (CASES / target.name).mkdir(parents=True, exist_ok=True)
                (CASES / target.name / f"seed{given.seed}-{k}").write_bytes(data)
            findings += len(wrong)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
