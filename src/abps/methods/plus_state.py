"""The state of abps-plus: what a center holds between two exchanges, and the messages it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights
from abps.data.prepare import Prepared
from abps.data.splines import TAILS, named_terms
from abps.methods.base import Context, Floats, Ints, Models
from abps.models import structure
from abps.models.families import family_of
from abps.models.hierarchical import FRACTIONS, CenterRows, CommonModel, FitState
from abps.models.interactions import PairTerms, candidates
from abps.models.newton import column_kinds
from abps.wire.number_lists import Field, Fields

#: Variance of intercepts before anything is known, and of coefficients when deviations are first estimated.
FIRST_INTERCEPT_VARIANCE = 4.0
FIRST_VARIANCE = 1e-3

#: Up to so many coefficients every center sends its curvature, and all of it is broadcast.
FULL_CURVATURE = 40
#: Beyond, a part of the centers does, and its largest entries are broadcast: so many per coefficient, beside
#: one factor for so many coefficients.
ENTRIES_EACH = 4
FACTOR_EACH = 100

ONE = Field("single", 1)


class Phase(Enum):
    """What an exchange is about."""

    START = "start"
    COMMON_FIT = "common fit"
    PAIRS = "common fit and pairs of columns"
    HALF_SCORES = "variances and half scores"
    VARIANCES = "variances"
    SHARED = "variances and shared deviations"
    CLUSTER_FIT = "cluster fit"
    CLUSTER_MEANS = "cluster means"
    OVER = "over"


@dataclass(frozen=True, eq=False)
class LocalRows:
    """What follows from the data of the centers here.

    rows: training and validation rows.  group: (q,) coefficients that share a penalty and a variance, -1 for
    constants.  half: (rows,) which rows are in the first half of their center.
    source: (inputs,) the table's column of each.  straight: inputs that are a number's straight part.
    sought: columns of a term in which structure is sought: no pair terms, and no tails, of which a center has
    few rows.
    pairs: how many columns at the end are pair terms.
    """

    rows: CenterRows
    group: NDArray[np.int64]
    half: NDArray[np.bool_]
    source: NDArray[np.int64]
    straight: NDArray[np.int64]
    sought: NDArray[np.int64]
    pairs: int = 0
    _with: dict[bytes, LocalRows] = field(default_factory=dict, repr=False)

    def with_pairs(self, pairs: PairTerms) -> LocalRows:
        """The same with pair terms as further columns, before the constant; the last two are kept."""
        if not pairs.count:
            return self
        key = pairs.left.tobytes() + pairs.right.tobytes()
        if key not in self._with:
            if len(self._with) > 1:
                self._with.clear()
            x = np.concatenate([self.rows.x, pairs.of(self.rows.x)], axis=1)
            shape, last = self.rows.shape, self.groups
            more = last + np.arange(self.terms)[:, None] + np.zeros(pairs.count, dtype=np.int64)
            own = self.group.reshape(shape)
            group = np.concatenate([own[:, :-1], more, own[:, -1:]], axis=1).ravel()
            rows = replace(self.rows, x=x)
            self._with[key] = replace(self, rows=rows, group=group, pairs=pairs.count, _with={})
        return self._with[key]

    @property
    def candidates(self) -> int:
        """Pairs of columns that may be used."""
        return len(candidates(int(self.source.max(initial=-1)) + 1)[0])

    @property
    def q(self) -> int:
        """Coefficients of a model, constants included."""
        terms, width = self.rows.shape
        return terms * width

    @property
    def terms(self) -> int:
        """Terms of the linear predictor."""
        return self.rows.shape[0]

    @cached_property
    def groups(self) -> int:
        """Groups of columns that share a variance."""
        return int(self.group.max()) + 1

    @cached_property
    def constants(self) -> NDArray[np.int64]:
        """(terms,) where the constants are."""
        return np.flatnonzero(self.group < 0)


@dataclass(frozen=True, eq=False)
class OwnSums:
    """What the posteriors of r centers add to the sums of an exchange about variances.

    modes, score: (r, q).  squares, dof: (r, groups).  shift, shift_dof: (r, terms).
    share: (r,) of its model that a center's own rows decide.
    place, place_dof: (r, k) positions along shared deviations, and their degrees of freedom.
    """

    modes: Floats
    score: Floats
    squares: Floats
    dof: Floats
    shift: Floats
    shift_dof: Floats
    share: Floats
    place: Floats
    place_dof: Floats

    @staticmethod
    def none(local: LocalRows) -> OwnSums:
        """Before there are any."""
        r, modes = local.rows.n, np.zeros((local.rows.n, local.q))
        groups, terms, none = np.zeros((r, local.groups)), np.zeros((r, local.terms)), np.zeros((r, 0))
        return OwnSums(modes, modes, groups, groups, terms, terms, np.zeros(r), none, none)

    @property
    def pull(self) -> Floats:
        """(r, k, q) derivatives of the centers' log-likelihood by shared deviations."""
        return np.asarray(self.place[:, :, None] * self.score[:, None])

    def values(self, scale: Floats) -> dict[str, Floats]:
        """The fields of a message about variances; scale: (q,) by which scores are written."""
        names = ("squares", "dof", "shift", "shift_dof", "place_dof")
        squares = {"shift_squares": self.shift**2, "place_squares": self.place**2}
        named = {name: getattr(self, name) for name in names}
        return {"score": self.score / scale, "pull": self.pull / scale} | squares | named


@dataclass(frozen=True, eq=False)
class ClusterState:
    """What centers know of the clusters of a federation.

    count: how many there are; 1: none were found.  number: (r,) the cluster of every center here.
    belongs: (r,) the probability that a center belongs to its cluster, once it has chosen.
    fits: of the clusters that have a center here, by their names.
    """

    count: int
    number: Ints
    belongs: Floats
    fits: tuple[FitState, ...] = ()

    @property
    def by_name(self) -> dict[int, FitState]:
        """The fits and the names of their clusters."""
        return dict(zip(np.unique(self.number).tolist(), self.fits, strict=True)) if self.fits else {}

    @staticmethod
    def none(r: int) -> ClusterState:
        """Nothing is known."""
        return ClusterState(1, np.zeros(r, dtype=np.int64), np.ones(r))


@dataclass(frozen=True, eq=False)
class PlusState(Models):
    """models: (r, P) every center's own model, as predictors read it.

    exchanges: how many are done.  fit: the common fit.  variance: (q,) of deviations.  dispersion: of the
    loss.  scale: (q,) size of a coefficient's score, by which scores are written.  rows: of all centers.
    information: of all rows about an intercept.  pairs: pairs of columns that are terms of the model.
    own: what every center's posterior adds to the next sums.  clusters: how centers differ.
    shared: (k, q) deviations that centers share, each to its own degree: a continuum instead of clusters.
    resting: (r,) which centers keep a model of their own rows alone.  excluded: (n,) whose uploads were left
    out of all first sums.  over: nothing is left to exchange.
    chance: the p-value of the test whether centers differ; -1: there was none.
    hope: the chance that collaboration lowers a center's loss, on average; -1: not all centers are here. For
    single centers it says no more than its average.
    """

    fit: FitState
    variance: Floats
    scale: Floats
    pairs: PairTerms
    own: OwnSums
    clusters: ClusterState
    shared: Floats
    resting: NDArray[np.bool_]
    excluded: NDArray[np.bool_]
    exchanges: int = 0
    dispersion: float = 1.0
    rows: float = 0.0
    information: float = 0.0
    over: bool = False
    chance: float = -1.0
    hope: float = -1.0


def column_groups(columns: tuple[str, ...], terms: int) -> NDArray[np.int64]:
    """(q,) which coefficients share a penalty and a variance between centers, -1 for constants: yes/no
    columns, straight parts and bends of numbers, for every term."""
    group = column_kinds(columns)
    count = int(group.max()) + 1
    return np.concatenate([[*(group + t * count), -1] for t in range(terms)]).astype(np.int64)


def local_rows(data: Prepared, order: Floats) -> LocalRows:
    """Rows that a center may look at, and the groups of their columns; order: (rows,) random numbers that
    split every center's rows into halves."""
    own = data.own
    family = family_of(own.outcome)
    rows = CenterRows(own.x, own.y.astype(np.float64), own.start, family)
    groups = column_groups(data.columns, len(family.mix))
    term = np.array(named_terms(data.columns)[1], dtype=str)
    straight, sought = (np.flatnonzero(which) for which in (term == "1", ~np.isin(term, TAILS)))
    return LocalRows(rows, groups, structure.halves(rows, order), column_sources(data), straight, sought)


def column_sources(data: Prepared) -> NDArray[np.int64]:
    """(inputs,) which column of the table every input comes from: levels and smooth terms share one."""
    known = {} if data.book is None else {column.name: column.source for column in data.book.columns}
    sources = [known.get(name, name) for name in named_terms(data.columns)[0]]
    return np.unique(sources, return_inverse=True)[1].astype(np.int64)


def local_of(context: Context, state: PlusState) -> LocalRows:
    """The rows of the centers here, with the pair terms that are in use."""
    local: LocalRows = context.derived
    return local.with_pairs(state.pairs)


def as_models(modes: Floats, local: LocalRows, pairs: PairTerms | None = None) -> Weights:
    """(r, P) coefficients, then intercepts, as linear models have them, then pair terms, from (r, q)."""
    pairs = PairTerms.none(local.rows.x.shape[1]) if pairs is None else pairs
    family = local.rows.family
    shaped = modes.reshape(len(modes), *local.rows.shape)
    level = shaped[:, :, -1] @ family.mix + family.baseline
    columns = shaped.shape[2] - 1 - pairs.count
    flat = np.concatenate([shaped[:, :, :columns].reshape(len(modes), -1), level], axis=1)
    return pairs.appended(flat.astype(np.float32), shaped[:, :, columns:-1])


def widened(values: Floats, local: LocalRows, count: int, fill: float = 0.0) -> Floats:
    """(..., q + terms * count) values (..., q) with so many pair terms before every constant."""
    shaped = values.reshape(*values.shape[:-1], *local.rows.shape)
    more = np.full((*shaped.shape[:-1], count), fill)
    wide = np.concatenate([shaped[..., :-1], more, shaped[..., -1:]], axis=-1)
    return wide.reshape(*values.shape[:-1], -1)


def common_model(state: PlusState, local: LocalRows) -> CommonModel:
    """The common model as centers compute with it."""
    shape = local.rows.shape
    return CommonModel(state.fit.point.reshape(shape), state.variance.reshape(shape), state.dispersion)


# Messages


def packed(fields: Fields, values: Mapping[str, Floats]) -> Floats:
    """(r, length) the messages of r centers from their values (r, ...) of every field."""
    return np.concatenate([np.reshape(values[name], (-1, f.total)) for name, f in fields.by_name.items()], 1)


def message(phase: Phase, local: LocalRows, shared: int = 0) -> Fields:
    """What is summed over centers in an exchange, and what the sums are broadcast as; shared: how many
    deviations centers share."""
    q, terms, groups = local.q, local.terms, local.groups
    score = {"score": Field("small", q)}
    if phase is Phase.START:
        intercepts = {name: Field("single", terms) for name in ("shift", "doubt")}
        curvature = {"diagonal": Field("half", q), "middle": Field("small", q)}
        return Fields(score | curvature | intercepts | {"rows": ONE, "members": ONE})
    if phase in (Phase.COMMON_FIT, Phase.PAIRS, Phase.CLUSTER_FIT):
        raw = {"raw": ONE} if local.rows.family.dispersion_factor else {}  # what dispersion follows from
        return Fields(score | {"losses": Field("single", len(FRACTIONS)), "rows": ONE} | raw)
    if phase is Phase.CLUSTER_MEANS:
        return Fields({})
    return Fields(
        score
        | {"squares": Field("half", groups), "dof": Field("half", groups)}
        | {name: Field("single", terms) for name in ("shift", "shift_squares", "shift_dof")}
        | ({name: Field("half", shared) for name in ("place_squares", "place_dof")} if shared else {})
        | ({"pull": Field("small", q, shared)} if shared else {})
    )


def beside_sums(phase: Phase, local: LocalRows) -> Fields:
    """What a center sends beside what is summed."""
    if phase is Phase.PAIRS:  # sums too, of which few are broadcast
        pairs = Field("small", local.terms * local.candidates)
        return Fields({"pair_scores": pairs, "pair_information": pairs})
    if phase is Phase.HALF_SCORES:
        return Fields({"halves": Field("small", len(local.sought), 2), "information": ONE})
    if phase is Phase.CLUSTER_FIT:
        return Fields({"cluster": ONE})
    return Fields({"mean": Field("small", local.q)} if phase is Phase.CLUSTER_MEANS else {})


def chosen_message(count: int, terms: int) -> Fields:
    """Pairs of columns that earned their place: which, and the sums of their scores and information."""
    place, sums = Field("place", count), Field("single", count, terms)
    return Fields({"first": place, "second": place, "score": sums, "information": sums})


def triangle_message(q: int) -> Fields:
    """A center's curvature as correlations: the lower triangle."""
    return Fields({"triangle": Field("small", q * (q + 1) // 2)})


def curvature_message(q: int) -> Fields:
    """The federation's curvature as correlations: the lower triangle, or factors and the largest entries."""
    if q <= FULL_CURVATURE:
        return triangle_message(q)
    entries = ENTRIES_EACH * q
    factors = Field("small", q, q // FACTOR_EACH + 1)
    return Fields({"factors": factors, "gaps": Field("share", entries), "values": Field("small", entries)})


def square(triangle: Floats, q: int) -> Floats:
    """(q, q) from the lower triangle."""
    found = np.zeros((q, q))
    found[np.tril_indices(q)] = triangle
    return found + np.tril(found, -1).T
