"""What others ask of a card: the checklist of TRIPOD+AI, and the metadata that Hugging Face reads."""

from __future__ import annotations

import json
from typing import Any, Final

from abps.fitted.fit import FitResult
from abps.fitted.model import FittedModel

#: The items of TRIPOD+AI (Collins et al. 2024) in our words.
ITEMS: Final = {
    1: "title: the study, the people and the outcome",
    2: "abstract: a structured summary",
    3: "background: why this prediction is wanted, what is known, whom it may treat unfairly",
    4: "objectives: development, evaluation, or both",
    5: "data: sources, dates, and how representative they are",
    6: "participants: setting, eligibility, treatments",
    7: "data preparation: cleaning and quality",
    8: "outcome: what it is, when and how it was ascertained",
    9: "predictors: which were considered, how and when they were measured",
    10: "sample size: why it is enough",
    11: "missing data: how it was handled",
    12: "analysis: how data were used, models built, and differences between hospitals handled",
    13: "class imbalance: whether and how it was handled",
    14: "fairness: how it was addressed",
    15: "output: what the model says, and thresholds with reasons",
    16: "training against evaluation: differences between the two",
    17: "ethical approval: who gave it, or why none was needed",
    18: "open science: funding, interests, protocol, registration, data and code",
    19: "patients and the public: how they were involved",
    20: "flow of participants, and what they are like",
    21: "development: rows and events in each analysis",
    22: "specification: all that is needed to predict for a new person",
    23: "performance: with intervals, also in subgroups and by hospital",
    24: "updating: what was changed on new data",
    25: "interpretation: what the results mean",
    26: "limitations",
    27: "usability: input of poor quality, the user's skill, next steps",
}

#: Items of which a program can say a part; people add the rest.
PARTLY: Final = (1, 3, 4, 5, 6, 8, 18, 25, 27)

#: Hugging Face's name for what a model does.
TASKS: Final = {"continuous": "tabular-regression"}


def checklist(answered: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Every item, where the card answers it, and what is left to do.

    answered: by section of the card, the items that it answers, with commas between.
    """
    where: dict[int, list[str]] = {item: [] for item in ITEMS}
    for title, items in answered.items():
        for item in items.split(","):
            where[int(item)].append(title)
    done = {
        item: "open: people must answer" if not titles else "complete it" if item in PARTLY else "answered"
        for item, titles in where.items()
    }
    return tuple((str(item), ITEMS[item], "; ".join(where[item]) or "–", done[item]) for item in ITEMS)


def front_matter(fitted: FitResult, model: FittedModel) -> str:
    """The block of YAML at the beginning of card.md (JSON is YAML); scores that a card does not show are not
    in it. The licence of the model is for its owner to name."""
    own, task = fitted.evaluations[model.center], TASKS.get(model.outcome.kind, "tabular-classification")
    scores = {name: found.value for name, found in own.measures.items()}
    if model.outcome.binary and own.area.enough:
        scores = {"roc_auc": own.area.value, "brier_score": own.brier}
    name = f"{model.label} at {model.center}"
    result: dict[str, Any] = {
        "task": {"type": task},
        "dataset": {"type": "tabular", "name": f"{fitted.federation.name}, {model.center}, out of fold"},
        "metrics": [
            {"type": key, "value": round(value, 4)} for key, value in scores.items() if value == value
        ],
    }
    content: dict[str, Any] = {
        "library_name": "abps",
        "pipeline_tag": task,
        "tags": ["tabular", "clinical", "federated-learning", "tripod-ai", fitted.making.method],
        "model_name": name,
        **({"model-index": [{"name": name, "results": [result]}]} if result["metrics"] else {}),
    }
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    return "\n".join(["---", *lines, "---", "", ""])
