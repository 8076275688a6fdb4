"""abps-plus as an estimator of scikit-learn: a model for every hospital, and one for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.codebook import encode_rows
from abps.data.federation import Federation
from abps.data.outcome import BINARY, Outcome
from abps.data.prepare import Prepared, prepare
from abps.data.reading import column_of, frame_of
from abps.data.splines import design_of
from abps.engine.rounds import RunState
from abps.fitted.model import network_of
from abps.methods.base import Context
from abps.methods.plus_state import as_models, local_of
from abps.methods.settings import configure
from abps.models.layout import answering
from abps.models.learners import learner_for
from abps.models.threads import BLAS

if TYPE_CHECKING:
    from sklearn.utils import Tags

Floats = NDArray[np.float64]


class ABPSClassifier(ClassifierMixin, BaseEstimator):
    """A classifier with one model per hospital, fitted by abps-plus; rows of a hospital it has not seen, and
    rows without a hospital, get the common model.

    center: name or place of the column of X that says the hospital; or give ``groups`` to ``fit`` and
    ``predict_proba``, one value per row. With neither, all rows are one hospital's.
    model: gam (smooth terms) or linear.  settings: further settings of abps-plus.  seed: of all draws.

    X may be an array, or a pandas or polars frame with numbers, categories and gaps.

    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.normal(size=(600, 2)), np.repeat(["north", "south", "west"], 200)
    >>> y = X[:, 0] + (hospital == "south") + rng.normal(size=600) > 0
    >>> classifier = ABPSClassifier().fit(X, y, groups=hospital)
    >>> classifier.predict_proba([[0, 0]] * 3, groups=["north", "south", "elsewhere"])[:, 1].round(1)
    array([0.4, 0.8, 0.5])
    """

    def __init__(
        self,
        center: str | int | None = None,
        model: str = "gam",
        settings: Mapping[str, Any] | None = None,
        seed: int = 11,
    ) -> None:
        self.center = center
        self.model = model
        self.settings = settings
        self.seed = seed

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> ABPSClassifier:
        """Fit every hospital's model.  groups: (rows,) hospitals; None: as ``center`` says."""
        features, groups = self._read(X, groups, y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        check_consistent_length(features, y)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise RequestError(f"y has one class alone ({self.classes_[0]!r}); give rows of two or more")
        names = tuple(str(name) for name in self.classes_)
        outcome = BINARY if len(names) == 2 else Outcome("classes", names)
        self._grouped = groups is not None
        centers, center = np.unique(np.zeros(len(y)) if groups is None else groups, return_inverse=True)
        federation = Federation(
            "X",
            features,
            label.astype(np.float64),
            center.astype(np.int32),
            tuple(f"{k:06d}" for k in range(len(centers))),
            outcome=outcome,
        )
        config = configure("abps-plus", {"model": self.model, **(self.settings or {})})
        everything = np.zeros(federation.rows, dtype=np.int8)
        how = config.training
        data = prepare(federation, self.seed, None, everything, how.standardise, how.splines)
        self.centers_ = centers
        self._fit_models(config, data)
        return self

    def _fit_models(self, config: Any, data: Prepared) -> None:
        """Run all exchanges; keep every hospital's coefficients, the common ones last."""
        ids = streams.center_ids(data.centers)
        learner = learner_for(data, config.training, self.seed)
        run = RunState.start(config, Context(learner, data, ids, self.seed, config.stop.rounds))
        with BLAS.limit(limits=1):
            for t in range(1, config.stop.rounds + 1):
                run, _ = run.round(t)
                if config.finished(run.state):
                    break
        local = local_of(run.context, run.state)
        common = as_models(run.state.fit.point[None], local, run.state.pairs)
        self.models_ = np.concatenate([run.state.models, common]).astype(np.float64)
        module = answering(config.training.factory, data.outcome)(data.width)
        self._networks = [network_of(module, row) for row in self.models_.astype(np.float32)]
        self.bytes_ = run.ledger.spent.directed + run.ledger.spent.control
        assert data.book is not None
        self._book, self._splines = data.book, data.splines

    def predict_proba(self, X: Any, groups: Any = None) -> Floats:
        """(rows, classes) probabilities, every row by its hospital's model."""
        check_is_fitted(self)
        features, groups = self._read(X, groups)
        which = np.full(features.height, -1 if self._grouped else 0)
        if groups is not None:
            place = {center: k for k, center in enumerate(self.centers_.tolist())}
            which = np.array([place.get(group, -1) for group in groups.tolist()], dtype=np.int64)
        x = encode_rows(self._book, features)
        if self._splines:
            x = design_of(self._book).of(x)
        answers = np.empty((len(x), self._networks[0].outputs))
        for k in np.unique(which):
            answers[which == k] = self._networks[k].answers(x[which == k])
        if answers.shape[1] > 1:
            return np.asarray(softmax(answers, axis=1))
        event = expit(answers[:, 0])
        return np.column_stack([1.0 - event, event])

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        probabilities = self.predict_proba(X, groups)
        return np.asarray(self.classes_[np.argmax(probabilities, axis=1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        right = self.predict(X, groups) == np.asarray(y)
        return float(np.average(right, weights=sample_weight))

    def _read(
        self, X: Any, groups: Any, y: Any = "no_validation"
    ) -> tuple[pl.DataFrame, NDArray[Any] | None]:
        """The features of X, and (rows,) their hospitals, where named.  y: when X is learned from.  Of frames
        scikit-learn checks names alone, and columns may hold text."""
        first = not isinstance(y, str)
        if hasattr(X, "columns"):
            validate_data(self, X, y, reset=first, skip_check_array=True)
            table = frame_of(X)
        else:
            X = validate_data(self, X, y, reset=first, ensure_all_finite="allow-nan")
            table = frame_of(X[0] if first else X)
        if self.center is not None:
            if groups is not None:
                raise RequestError(f"groups and center={self.center!r} both name hospitals; give one of them")
            names = table.columns
            name = names[self.center] if isinstance(self.center, int) else self.center
            if name not in names:
                raise RequestError(f"center={self.center!r}: X has no such column; it has {', '.join(names)}")
            groups, table = table[name].to_numpy(), table.drop(name)
        if groups is None:
            return table, None
        found = column_of("groups", groups)
        check_consistent_length(table, found)
        if first and found.null_count():
            raise RequestError(f"groups: {found.null_count()} rows have no hospital; name it, or drop them")
        return table, found.to_numpy()
