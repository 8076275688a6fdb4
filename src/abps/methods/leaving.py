"""Every value that would leave a center in a study, for those who must approve it: computed from a center's
own table with the functions that the study uses; nothing is sent.
"""

from dataclasses import dataclass

import numpy as np

from abps.core import streams
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import numeric_rows, prepare
from abps.data.scales import FIRST, published_counts
from abps.data.split import assign_splits
from abps.methods.accounting import to_count
from abps.methods.base import Context, Method, with_derived
from abps.methods.coordinated import CoordinatedMethod
from abps.methods.references import GlmExact
from abps.models.learners import learner_for
from abps.privacy.small_counts import least_rows
from abps.wire.codecs import codec, frame_size


@dataclass(frozen=True)
class Value:
    """One value that would leave: what (codebook, counts, metadata, weights, sums or scores), of which column
    or entry, itself (of weights and scores: how many), and when (once, every round, or in which)."""

    what: str
    name: str
    value: str | float
    when: str = "once"


def leaving(method: Method, table: Federation, book: Codebook, seed: int) -> tuple[Value, ...]:
    """Every value that would leave one center in a study.

    table: the center's own (a federation of one).  book: the codebook that it would be encoded by. Of weights
    only number and bytes are listed, because they result from training.
    """
    training = method.training
    data = prepare(table, seed, book, standardise=training.standardise, splines=training.splines)
    learner = learner_for(data, training, seed)
    context = Context(learner, data, streams.center_ids(data.centers), seed, method.stop.rounds)
    found = [Value("codebook", column.name, column.kind) for column in book.columns]
    found += [Value("codebook", f"outcome {name}", "a class") for name in book.outcome.names]
    lacking = to_count(method, book)
    if lacking:
        found += _counts(lacking, table, book, seed)
    published = method.publish(context)
    if len(published.vectors):
        found += [Value("metadata", name, float(v)) for name, v in zip(published.names, published.vectors[0])]
    if isinstance(method, GlmExact):
        found += _sums(method, with_derived(method, context))
    elif isinstance(method, CoordinatedMethod):
        found += _uploads(method, with_derived(method, context))
    elif method.kind != "alone":
        shared = method.line.shared(context)
        size = frame_size(codec(method.line.codec), shared)
        found.append(Value("weights", f"{size} bytes as {method.line.codec}", float(shared), "every round"))
    return tuple(found)


def _counts(names: tuple[str, ...], table: Federation, book: Codebook, seed: int) -> list[Value]:
    """What is counted under masks: the first count; others are of bins that follow from totals."""
    split = assign_splits(table, seed, book.shared_patients)
    values, start, rows = numeric_rows(table, split, names)
    patient = None if table.patient is None else table.patient[rows]
    least = least_rows(table.center[rows], patient, 1, book.min_cell) if book.min_cell else None
    edges = np.tile(FIRST, (len(names), 1))
    counts = published_counts(values, np.zeros(int(start[-1]), dtype=np.int64), 1, edges, least)[0]
    ends = [-np.inf, *FIRST.tolist(), np.inf]
    found = []
    for k, name in enumerate(names):
        for b in np.flatnonzero(counts[k]).tolist():
            where = f"{name}: values from {ends[b]:.4g} to {ends[b + 1]:.4g}"
            found.append(Value("counts", where, float(counts[k, b]), "once, under masks"))
        more = f"{name}: two more counts, of narrower bins"
        found.append(Value("counts", more, "as above", "once, under masks"))
    return found


def _sums(method: GlmExact, context: Context) -> list[Value]:
    """The sums of a regression at zero coefficients, where all begin; later ones follow from totals."""
    state = method.init(context)
    sums = method.upload(context, state, 1).values[0].tolist()
    names = ("the intercept", *context.data.columns)
    half = zip(*np.triu_indices(len(names)))
    labels = [f"curvature of {names[i]} and {names[j]}" for i, j in half]
    labels += [f"gradient of {name}" for name in names]
    labels += ["training loss", "training rows"]
    found = [Value("sums", name, value, "round 1") for name, value in zip(labels, sums, strict=True)]
    return [*found, Value("sums", "the same at other coefficients", float(len(sums)), "later rounds")]


def _uploads(method: CoordinatedMethod, context: Context) -> list[Value]:
    """The upload of the first exchange, by its number of values; later ones follow from the broadcasts."""
    upload = method.upload(context, method.init(context), 1)
    about = f"upload to the coordinator, {upload.messages[0].size} bytes"
    return [Value("scores", about, float(len(upload.messages[0].values)), "every exchange")]
