"""One center's own table, read at that center: a federation of one, in the terms of the study's codebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from abps.core.errors import RequestError
from abps.data.codebook import Codebook, typed
from abps.data.federation import Federation
from abps.data.label import EncodedLabel, align_label, encode_label
from abps.data.reading import read_raw
from abps.data.repairs import to_levels
from abps.data.roles import Roles
from abps.data.screening import screen
from abps.data.table import (
    MIN_CLASS,
    as_feature,
    make_federation,
    repair_table,
    resolve,
    role_columns,
    usable_features,
)


def own_outcome(
    path: str | Path,
    label: str,
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> EncodedLabel:
    """The outcome of one center's own table: what it is, and which of its words are the event."""
    roles = Roles(label, "", positive=positive, outcome=outcome, duration=duration)
    raw = read_raw(Path(path)).frame
    roles = resolve(raw, roles)
    return encode_label(repair_table(raw, roles)[0], roles)


def _same_event(outcome: EncodedLabel, book: Codebook, site: str, label: str) -> None:
    """Refuse a table whose event is not the codebook's: the model would learn the contrary from it."""
    events, others = {*outcome.event_words}, {*outcome.other_words}
    turned = sorted(events & {*book.others} | others & {*book.events})
    if turned:
        raise RequestError(
            f"{site}: the label {label!r} counts {turned[0]!r} the other way round than the codebook; say in "
            "the site's file which value is the event (positive), or agree on another codebook"
        )
    unknown = sorted((events | others) - {*book.events, *book.others})
    if unknown and outcome.doubt:
        raise RequestError(
            f"{site}: the codebook does not say whether {unknown[0]!r} of the label {label!r} is the event; "
            "say it in the site's file (positive), or agree on another codebook"
        )


def own_table(
    path: str | Path,
    site: str,
    label: str,
    patient: str | None = None,
    time: str | None = None,
    drop: tuple[str, ...] = (),
    book: Codebook | None = None,
    positive: str | None = None,
    outcome: str | None = None,
    duration: str | None = None,
) -> Federation:
    """One center's own table, read at that center: a federation of one.

    With a codebook the features are those that it asks for, and the outcome is in its terms; without, all
    that can be learned from.
    positive: the label's value that is the event, where its words leave doubt.
    outcome, duration: as in :class:`Roles`; nothing said, the outcome is the codebook's.
    """
    table = read_raw(Path(path))
    if outcome is None and book is not None and not book.outcome.binary:
        outcome = book.outcome.asked
    roles = Roles(label, "", patient, time, None, tuple(drop), positive=positive, outcome=outcome,
                  duration=duration)  # fmt: skip
    raw = table.frame
    roles = resolve(raw, roles)
    label, patient, time = roles.label, roles.patient, roles.time
    frame, repairs, doubts = repair_table(raw, roles)
    found = encode_label(frame, roles)
    if book is not None:
        found = align_label(found, book.outcome, site, label)
        _same_event(found, book, site, label)
    values, what = found.values, found.outcome
    lacks = what.lacks(values)
    if what.binary and lacks:
        lacks = (
            f"{int(values.sum())} positive of {len(values)} rows; a center needs {MIN_CLASS} of each class"
        )
    if lacks:
        raise RequestError(f"{path}: {lacks}")
    if book is not None and book.time and time is None:
        raise RequestError(f"{site}: the codebook asks for a time column; name it with time")
    rest = frame.drop(role_columns(frame, roles))
    if book is None:
        events = what.events(values).astype(np.int8)
        excluded = {f.column: f.sentence for f in screen(rest, events) if f.excluded}
        features, reasons = usable_features(rest.drop(list(excluded)))
        reasons |= excluded
    else:
        features = as_agreed(rest, raw, book, site)
        reasons = dict.fromkeys(rest.columns, "not in the codebook")
    if features.width == 0:
        raise RequestError(f"{path}: no column is left to learn from; check drop and the table")
    if book is not None and not book.time:
        roles = replace(roles, time=None)
    made = make_federation(frame, roles, found, features, reasons, site)
    assert made.notes is not None
    notes = replace(
        made.notes,
        form=table.form,
        repairs=tuple(repairs),
        warnings=(*table.warnings, *((found.doubt,) if found.doubt else ()), *doubts),
    )
    described = made.descriptors if book is None else book.descriptors
    return replace(made, notes=notes, descriptors=described)


def as_agreed(repaired: pl.DataFrame, raw: pl.DataFrame, book: Codebook, owner: str) -> pl.DataFrame:
    """The columns that a codebook asks for, as it asks for them: levels by its own spelling."""
    levels: dict[str, list[str]] = {}
    for column in book.columns:
        if column.kind == "level":
            levels.setdefault(column.source, []).append(column.level)
    known = {column.name: as_feature(column) for column in repaired.get_columns()}
    known |= {name: to_levels(raw[name], wanted) for name, wanted in levels.items() if name in raw.columns}
    return typed({name: column for name, column in known.items() if column is not None}, book, owner)
