"""What a partner can infer from what it receives: who was in a center's training rows, and what they have.

The attacker knows the common start and a center's update as the wire carries it, and holds records of people.
*alignment*: the cosine between the update and the step that one row alone would ask for. *shadow models*:
half of the centers are the attacker's own; from their updates it learns how members differ from others
(alignment, loss before and after). *attributes*: of one unknown yes/no entry it takes the value whose
gradient fits the update better; what counts is how much better it guesses for members than for others.

Where centers send sums, the coordinator recomputes an upload with and without the row. *alignment* is the
cosine of that and what arrived; *shadow models* the likelihood ratio of a sum with the row against one
without it, given what rows of other people add. Under masks it sees the total alone. Of every center only so
many training rows are learned from; the rest count among the people that it has not seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.engine.rounds import RunState
from abps.methods.accounting import with_noise
from abps.methods.base import Context, Method
from abps.methods.coordinated import Broadcast, CoordinatedMethod
from abps.methods.references import GlmExact
from abps.methods.settings import names, with_settings
from abps.methods.star import StarMethod
from abps.models.learners import Learner, learner_for
from abps.privacy.attack_findings import Finding
from abps.privacy.fixed_point import exact_sum

Floats = NDArray[np.float64]

#: Yes/no columns whose entries are guessed, and the fewest and most rows that may have a one.
ATTRIBUTES, RARE, FREQUENT = 8, 0.1, 0.9

#: Centers without which shadow models have nothing to learn from.
FEWEST = 4


@dataclass(frozen=True)
class Protection:
    """Settings that protect, by a name for tables."""

    name: str
    settings: Mapping[str, Any]


#: The settings of private training that hide a row, undone.
WITHOUT_NOISE = {"dp_epsilon": None, "sampling": 1.0, "noise_multiplier": 0.0, "clip": None}


def protections(config: Method, budgets: Sequence[float]) -> list[Protection]:
    """What is compared: as it ran, without rounding on the wire, and with what hides rows, or without it."""
    found = [Protection("as it ran", {})]
    if isinstance(config, CoordinatedMethod):
        secure = config.privacy.secure
        return [*found, Protection("without masks" if secure else "masked sums", {"secure": not secure})]
    if "codec" in names(config) and config.line.codec != "fp32":
        found.append(Protection("all digits", {"codec": "fp32"}))
    if isinstance(config, StarMethod) and config.adds is not None and not config.noted:
        secure = config.privacy.secure
        found.append(Protection("without masks" if secure else "masked sums", {"secure": not secure}))
    if config.privacy.budget is not None:
        found.append(Protection("no noise", WITHOUT_NOISE))
    elif config.training.model in ("mlp", "linear", "gam"):
        found += [Protection(f"ε = {b:g}", {"clip": 1.0, "dp_epsilon": b}) for b in budgets]
    return found


def attackable(method: Method) -> bool:
    """Whether centers send models that were trained on their rows, or sums over them, which attacks read."""
    return method.kind != "alone" and not isinstance(method, GlmExact)


def fitting(data: Prepared, sizes: Sequence[int]) -> list[int]:
    """The sizes that enough centers have; the smallest, where none is."""
    return [size for size in sizes if (data.train.sizes >= size).sum() >= FEWEST] or [min(sizes)]


def cut(data: Prepared, rows: int, seed: int) -> tuple[Prepared, Rows]:
    """Centers with at least ``rows`` training rows and that many of them, drawn at random; and, of the same
    centers, people who were not learned from: test rows and the ones left over."""
    keep = np.flatnonzero(data.train.sizes >= rows)
    if len(keep) < FEWEST:
        raise RequestError(
            f"rows={rows}: {len(keep)} center(s) have so many training rows, and the attacks need {FEWEST}; "
            "choose a smaller size"
        )
    inside, outside = [], []
    ids = streams.center_ids(data.centers)
    for i in keep:
        train, test = data.train.only(int(i)), data.test.only(int(i))
        order = streams.generator(seed, "attack", rows, int(ids[i])).permutation(len(train.y))
        mine, left = np.sort(order[:rows]), np.sort(order[rows:])
        inside.append((train.x[mine], train.y[mine]))
        x, y = np.concatenate([test.x, train.x[left]]), np.concatenate([test.y, train.y[left]])
        outside.append((x, y))
    centers = tuple(data.centers[i] for i in keep)
    parts = [_joined([part.only(int(i)) for i in keep]) for part in (data.validation, data.test)]
    smaller = replace(
        data,
        centers=centers,
        train=_stacked(inside),
        validation=parts[0],
        test=parts[1],
        metadata=data.metadata[keep],
        groups=None if data.groups is None else tuple(data.groups[i] for i in keep),
    )
    return smaller, _stacked(outside)


def _stacked(parts: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> Rows:
    start = np.concatenate([[0], np.cumsum([len(y) for _, y in parts])])
    return Rows(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), start)


def _joined(parts: Sequence[Rows]) -> Rows:
    return _stacked([(part.x, part.y) for part in parts])


@dataclass(frozen=True, eq=False)
class Exposed:
    """What partners of a round see: models (n, shared) before and after; and ``at`` which (n, P) gradients
    are taken."""

    round: int
    before: Weights
    after: Weights
    at: Weights


def exposed(method: Method, data: Prepared, seed: int, rounds: Sequence[int]) -> list[Exposed]:
    """Every center's update in some rounds, as the wire carries it; where a server sees sums alone, the mean
    of all. The attacker is given the model that a center began the round with: more than a partner knows
    later on."""
    method = with_noise(method)
    training = method.training
    ids = streams.center_ids(data.centers)
    learner = learner_for(data, training, seed)
    context = Context(learner, data, ids, seed, method.stop.rounds)
    course = RunState.start(method, context)
    found = []
    for t in range(1, max(rounds) + 1):
        if t in rounds:
            models = getattr(course.state, "models", None)
            if models is None:
                raise RequestError("this method keeps no model for every center; audit another")
            beside = learner_for(data, training, seed)
            after = beside.train(models, t)
            shared = method.line.shared(context)
            sent = method.line.deliver(context, after[:, :shared], t)
            before = models[:, :shared].copy()
            if method.kind == "star" and method.privacy.secure:
                sent = before + (sent - before).mean(axis=0)
            found.append(Exposed(t, before, sent, models.copy()))
        course, _ = course.round(t)
    return found


class Gradients:
    """Gradients of single rows, with respect to the shared columns of a model."""

    def __init__(self, learner: Learner, shared: int) -> None:
        import torch  # pages that show findings do without it

        self._torch, self._layout, self._shared = torch, learner.layout, shared
        self._model = learner.training.factory(learner.data.width).eval()
        self._each = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, w: Any, x: Any, y: Any, reduction: str = "mean") -> Any:
        many = x if x.ndim == 2 else x[None]
        logit = self._torch.func.functional_call(self._model, self._layout.unflatten(w), (many,))
        loss = self._torch.nn.functional.binary_cross_entropy_with_logits
        return loss(logit.reshape(y.shape), y, reduction=reduction)

    def _tensors(self, w: Weights, *values: NDArray[np.float32]) -> tuple[Any, ...]:
        return (self._torch.tensor(w), *(self._torch.from_numpy(value) for value in values))

    def of(self, w: Weights, x: NDArray[np.float32], y: NDArray[np.float32]) -> Weights:
        """(rows, shared)."""
        return self._each(*self._tensors(w, x, y))[:, : self._shared].numpy()

    def losses(self, w: Weights, x: NDArray[np.float32], y: NDArray[np.float32]) -> Floats:
        """(rows,)."""
        model, rows, labels = self._tensors(w, x, y)
        with self._torch.no_grad():
            return self._loss(model, rows, labels, "none").numpy().astype(np.float64)


def features(
    made: Gradients, seen: Exposed, i: int, x: NDArray[np.float32], y: NDArray[np.float32]
) -> Floats:
    """(rows, 3) what distinguishes members of center i from others: alignment, and loss before and after."""
    gradient = made.of(seen.at[i], x, y)
    update = seen.after[i] - seen.before[i]
    size = np.linalg.norm(gradient, axis=1) * np.linalg.norm(update)
    along = -(gradient @ update) / np.maximum(size, 1e-12)
    model = seen.at[i].copy()
    before = made.losses(model, x, y)
    model[: len(update)] = seen.after[i]
    return np.stack([along.astype(np.float64), before, made.losses(model, x, y)], axis=1)


def area(scores: Floats, member: NDArray[np.bool_]) -> float:
    """The area under the curve; 0.5 where one side is empty."""
    if not member.any() or member.all():
        return 0.5
    inside, outside = scores[member], scores[~member]
    return float(mannwhitneyu(inside, outside).statistic / (len(inside) * len(outside)))


def attack(made: Gradients, seen: Exposed, members: Rows, others: Rows, name: str) -> Finding:
    n = len(members.sizes)
    known: list[tuple[Floats, NDArray[np.bool_]]] = []
    gaps = []
    for i in range(n):
        inside, outside = members.only(i), others.only(i)
        x, y = np.concatenate([inside.x, outside.x]), np.concatenate([inside.y, outside.y])
        member = np.arange(len(y)) < len(inside.y)
        known.append((features(made, seen, i, x, y), member))
        gaps.append(guessing(made, seen, i, x, y, member))
    aligned = np.array([area(values[:, 0], member) for values, member in known])
    areas = (*_mean(aligned), *_mean(np.array(_by_shadows(known))))
    gap = np.array([g for g in gaps if np.isfinite(g)])
    return Finding(name, int(members.sizes[0]), seen.round, n, *areas, float(gap.mean()) if len(gap) else 0.0)


def _by_shadows(known: Sequence[tuple[Floats, NDArray[np.bool_]]]) -> list[float]:
    """Each half of the centers attacked by what the other half teaches."""
    found = []
    for half in (0, 1):
        taught = [pair for k, pair in enumerate(known) if k % 2 == half]
        x, y = np.concatenate([f for f, _ in taught]), np.concatenate([m for _, m in taught])
        middle, spread = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
        design = np.column_stack([np.ones(len(x)), (x - middle) / spread])
        # Least squares: a linear discriminant, also where a feature says nothing.
        fitted = np.linalg.lstsq(design, y.astype(np.float64), rcond=None)[0]
        found += [
            area(((f - middle) / spread) @ fitted[1:], m) for k, (f, m) in enumerate(known) if k % 2 != half
        ]
    return found


def guessing(
    made: Gradients,
    seen: Exposed,
    i: int,
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    member: NDArray[np.bool_],
) -> float:
    """How much better a yes/no entry is guessed for members than for others: a difference of areas."""
    flags = flags_of(x)
    if not len(flags):
        return float("nan")
    update = seen.after[i] - seen.before[i]
    gaps = []
    for k in flags:
        fits = []
        for value in (1.0, 0.0):
            guess = x.copy()
            guess[:, k] = value
            gradient = made.of(seen.at[i], guess, y)
            fits.append(-(gradient @ update) / np.maximum(np.linalg.norm(gradient, axis=1), 1e-12))
        score, truth = (fits[0] - fits[1]).astype(np.float64), x[:, k] > 0
        gaps.append(area(score[member], truth[member]) - area(score[~member], truth[~member]))
    return float(np.mean(gaps))


# ---------------------------------------------------------------- sums that a coordinator sees

#: Members and strangers of a center that are asked about, and yes/no columns whose entries are guessed.
ASKED, SUM_ATTRIBUTES = 8, 2


class SumAttack:
    """Attacks of a coordinator on uploads that are sums over rows, in some exchanges, with all digits as
    masks carry them. What centers send about clusters (half scores) is not attacked."""

    def __init__(
        self, method: CoordinatedMethod, data: Prepared, others: Rows, seed: int, rounds: Sequence[int]
    ) -> None:
        self.method = cast(CoordinatedMethod, with_settings(method, {"secure": True}))
        self.data, self.seed, self.rounds = data, seed, rounds
        self.members = [data.train.only(i) for i in range(len(data.centers))]
        self.strangers = [others.only(i) for i in range(len(data.centers))]
        self.asked = min(ASKED, int(data.train.sizes.min()), int(others.sizes.min()))
        self.broadcasts: list[Broadcast] = []
        self.sent = self.uploads(self.members)

    def uploads(self, parts: Sequence[Rows]) -> list[Floats]:
        """Per round: (n, entries) what centers with these rows send, after the same broadcasts."""
        data, method = replace(self.data, train=_joined(parts)), self.method
        ids = streams.center_ids(data.centers)
        learner = learner_for(data, method.training, self.seed)
        start = RunState.start(method, Context(learner, data, ids, self.seed, method.stop.rounds))
        context, state, found = start.context, start.state, []
        for t in range(1, max(self.rounds) + 1):
            sent = np.nan_to_num(method.upload(context, state, t).values)
            found += [sent] if t in self.rounds else []
            if len(self.broadcasts) < t:
                self.broadcasts.append(method.aggregate(context, state, exact_sum(sent)[None], t))
            state = method.apply_broadcast(context, state, self.broadcasts[t - 1], t)
        return found

    def changed(self, k: int, row: str = "", column: int | None = None) -> list[Floats]:
        """Uploads without every center's k-th member, or with a row in its place: itself ("member") or the
        k-th stranger; with a yes/no column, the row with the other entry."""
        parts = []
        for mine, other in zip(self.members, self.strangers):
            rest = np.arange(len(mine.y)) != k
            x, y = mine.x[rest], mine.y[rest]
            if row:
                source = mine if row == "member" else other
                new = source.x[k : k + 1].copy()
                if column is not None:
                    new[0, column] = 1.0 - new[0, column]
                x, y = np.concatenate([x, new]), np.concatenate([y, source.y[k : k + 1]])
            parts.append(_stacked([(x, y)]))
        return self.uploads(parts)

    def findings(self, masked: Mapping[str, bool]) -> list[Finding]:
        """Per round and protection; masked: whether the coordinator sees the total alone, by its name."""
        asked = [(k, row) for row in ("member", "stranger") for k in range(self.asked)]
        columns = flags_of(np.concatenate([part.x for part in self.members]))[:SUM_ATTRIBUTES].tolist()
        without = [self.changed(k) for k in range(self.asked)]
        added: dict[int | None, list[Floats]] = {}  # (n, asked, entries) what rows add to uploads, per round
        for column in (None, *columns):
            new = [self.changed(k, row, column) for k, row in asked]
            added[column] = [
                np.stack([new[a][at] - without[k][at] for a, (k, _) in enumerate(asked)], axis=1)
                for at in range(len(self.rounds))
            ]
        return [
            self._finding(name, hidden, at, {column: each[at] for column, each in added.items()})
            for name, hidden in masked.items()
            for at in range(len(self.rounds))
        ]

    def _finding(self, name: str, masked: bool, at: int, added: Mapping[int | None, Floats]) -> Finding:
        sent, n, size = self.sent[at], len(self.members), len(self.members[0].y)
        member = np.arange(2 * self.asked) < self.asked
        seen, count = (np.tile(sent.sum(axis=0), (n, 1)), n * size) if masked else (sent, size)
        own = added[None]
        others = [np.delete(own[:, ~member], i, axis=0).reshape(-1, sent.shape[1]) for i in range(n)]
        tests = [RatioTest(others[i], seen[i], count) for i in range(n)]
        along = [cosine(own[i] - r.mean, seen[i] - count * r.mean) for i, r in enumerate(tests)]
        ratio = np.array([r(own[i]) for i, r in enumerate(tests)])
        aligned, shadowed = (np.array([area(each, member) for each in which]) for which in (along, ratio))
        gaps = []
        for column in (column for column in added if column is not None):
            turned = np.array([r(added[column][i]) for i, r in enumerate(tests)])
            pairs = zip(self.members, self.strangers)
            entries = [np.concatenate([rows.x[: self.asked, column] for rows in pair]) for pair in pairs]
            truth = np.array(entries) > 0
            fits = np.where(truth, ratio - turned, turned - ratio)
            inside, outside = (area(fits[:, m].ravel(), truth[:, m].ravel()) for m in (member, ~member))
            gaps.append(inside - outside)
        areas = (*_mean(aligned), *_mean(shadowed))
        return Finding(name, size, self.rounds[at], n, *areas, float(np.mean(gaps)) if gaps else 0.0)


class RatioTest:
    """The log likelihood ratio that rows are in a sum of so many: normal sums, whose law follows from what
    rows of other people add.  reference: (people, entries).  seen: (entries,)."""

    def __init__(self, reference: Floats, seen: Floats, count: int) -> None:
        self.mean, self.count = reference.mean(axis=0), count
        spread = reference.std(axis=0, ddof=1)
        self.used = spread > 1e-6 * spread.max()
        self.spread = spread[self.used]
        # Half of the covariance and half of its diagonal: there may be more entries than people, so that the
        # inverse is taken among people (Woodbury).
        self.people = (reference - self.mean)[:, self.used] / self.spread
        k = len(self.people)
        self.kernel = np.linalg.inv((k - 1) * np.eye(k) + self.people @ self.people.T)
        self.residual = (seen - count * self.mean)[self.used] / self.spread

    def __call__(self, added: Floats) -> Floats:
        """(rows,) for rows that add (rows, entries)."""
        d = (added - self.mean)[:, self.used] / self.spread
        weighed = 2.0 * (d - (d @ self.people.T) @ self.kernel @ self.people)
        return (weighed @ self.residual - 0.5 * (weighed * d).sum(axis=1)) / self.count


def cosine(rows: Floats, one: Floats) -> Floats:
    return (rows @ one) / np.maximum(np.linalg.norm(rows, axis=1) * np.linalg.norm(one), 1e-300)


def _mean(values: Floats) -> tuple[float, float]:
    """A mean with its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def flags_of(x: NDArray[np.float32]) -> NDArray[np.intp]:
    """Yes/no columns that are neither rare nor nearly always set."""
    share = x.mean(axis=0)
    return np.flatnonzero(np.isin(x, (0, 1)).all(axis=0) & (share > RARE) & (share < FREQUENT))[:ATTRIBUTES]


def audit(
    method: Method,
    data: Prepared,
    seed: int,
    sizes: Sequence[int],
    rounds: Sequence[int],
    protections: Sequence[Protection],
) -> list[Finding]:
    found = []
    if isinstance(method, CoordinatedMethod):
        secure = method.privacy.secure
        masked = {each.name: bool(each.settings.get("secure", secure)) for each in protections}
        for size in sizes:
            found += SumAttack(method, *cut(data, size, seed), seed, rounds).findings(masked)
        return found
    for protection in protections:
        changed = with_settings(method, protection.settings)
        for size in sizes:
            smaller, others = cut(data, size, seed)
            seen = exposed(changed, smaller, seed, rounds)
            learner = learner_for(smaller, changed.training, seed)
            made = Gradients(learner, seen[0].before.shape[1])
            found += [attack(made, each, smaller.train, others, protection.name) for each in seen]
    return found
