"""The rows that a model gets most wrong, what it has seen that is like them, and the one word that decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.analysis.scorer import Scorer
from bertrio.analysis.words import WORD, NearWords, instead, unit, without, words_of
from bertrio.core.tasks import Array, Predicted, Task
from bertrio.evaluation.predictions import Scored

Positions = NDArray[np.int64]


def row_error(scored: Scored, task: Task) -> Array:
    """How wrong each row [N] is: the confidence in a wrong class and 0 for right rows, or the distance of the score."""
    if task.target.discrete and len(scored.labels):
        return np.where(scored.labels == scored.predictions, 0.0, scored.confidence)
    return np.abs(scored.predictions - scored.labels)


def worst_rows(scored: Scored, task: Task, count: int) -> Positions:
    """Positions of the `count` worst rows, or as many as are wrong at all, the worst first and the first of equals."""
    bad = row_error(scored, task)
    order = np.argsort(-bad, kind="stable")[:count]
    return order[bad[order] > 0]


def describe_worst(
    scorer: Scorer, task: Task, rows: pd.DataFrame, train: pd.DataFrame, near: NearWords, neighbours: int, words: int
) -> list[dict[str, Any]]:
    """What there is to say of the worst rows, in their order.

    Args:
        scorer: asked about training rows and changed texts.
        task: what the rows belong to.
        rows: with `id`, the task's text columns, `label`, `prediction` and `row_error`.
        train: rows to look for neighbours in.
        near: finds words to put in place of others.
        neighbours: how many training rows to give for each.
        words: how many near words to try for each word.

    Returns:
        For each row `{"id", "texts", "label", "prediction", "confidence" or "error", "neighbours", "change"}`; see
        `nearest` and `strongest_changes`.
    """
    measure = "confidence" if task.target.discrete else "error"
    seen = nearest(scorer, task, rows, train, neighbours)
    changes = strongest_changes(scorer, task, rows, near, words)
    return [
        {
            "id": row["id"],
            "texts": [row[column] for column in task.text_columns],
            "label": row["label"],
            "prediction": row["prediction"],
            measure: row["row_error"],
            "neighbours": like,
            "change": change,
        }
        for (_, row), like, change in zip(rows.iterrows(), seen, changes)
    ]


def nearest(
    scorer: Scorer, task: Task, rows: pd.DataFrame, train: pd.DataFrame, count: int
) -> list[list[dict[str, Any]]]:
    """The training rows nearest to each row by the cosine of their pooled vectors, the nearest first.

    Returns:
        For each row a list of `{"id", "texts", "label", "similarity"}`.
    """
    if rows.empty or train.empty:
        return [[] for _ in range(len(rows))]
    own, others = (unit(scorer.embed(task.name, frame)) for frame in (rows, train))
    cosines = own @ others.T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return [
        [
            {
                "id": train["id"].iloc[place],
                "texts": [train[column].iloc[place] for column in task.text_columns],
                "label": float(train["label"].iloc[place]),
                "similarity": float(cosine[place]),
            }
            for place in places
        ]
        for places, cosine in zip(order, cosines)
    ]


def strongest_changes(
    scorer: Scorer, task: Task, rows: pd.DataFrame, near: NearWords, words: int
) -> list[dict[str, Any] | None]:
    """Of each row the change of one word that moves the prediction most.

    Every word is left out once, and once replaced by each of its near words, and in a pair by the nearest word of the
    other text. How far a prediction moves is the distance of the scores, or of the probabilities, half their absolute
    differences summed: the most that the probability of any set of classes changes by. The case behind it: "SMART
    Fine-tuning", section 6, where the score of "It's also a matter of taste." and "It's definitely just a matter of
    preference." rises from 2.22 to 4.56 (label 5) when "preference" becomes "taste".

    Returns:
        For each row `{"text": 0 or 1, which of its texts, "position": which of that text's words, from 0, "from",
        "to": null where the word is left out, "changed": the text then, "before", "after": predictions, and for classes
        "confidence_before", "confidence_after": their probabilities}`; None for a row without a word.
    """
    edits = [edit for place in range(len(rows)) for edit in _edits(rows.iloc[place], place, task.text_columns)]
    options = near.near((edit["from"].lower() for edit in edits), words)
    edits = [
        tried for edit in edits for tried in _variants(edit, [*options[edit["from"].lower()], *_across(edit, near)])
    ]
    changed = rows[list(task.text_columns)].iloc[[edit["row"] for edit in edits]].reset_index(drop=True)
    for column, name in enumerate(task.text_columns):
        changed[name] = [
            edit["changed"] if edit["text"] == column else text for edit, text in zip(edits, changed[name])
        ]
    before, after = scorer.predict(task.name, rows), scorer.predict(task.name, changed)
    moved = distance(before.take([edit["row"] for edit in edits]), after)
    best: dict[int, int] = {}
    for place, edit in enumerate(edits):
        if edit["row"] not in best or moved[place] > moved[best[edit["row"]]]:
            best[edit["row"]] = place
    return [_told(edits[best[row]], before, row, after, best[row]) if row in best else None for row in range(len(rows))]


def distance(one: Predicted, other: Predicted) -> Array:
    """How far apart two predictions for each row [N] are: total variation, 0 to 1, or the difference of the scores."""
    if one.probabilities is None or other.probabilities is None:
        return np.abs(one.values - other.values)
    return np.abs(one.probabilities - other.probabilities).sum(axis=1) / 2


def _edits(row: pd.Series, place: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Every word of a row, to be changed: `row`, `text`, `position`, `from`, `span` in the `original`, `other` text."""
    return [
        {
            "row": place,
            "text": number,
            "position": position,
            "from": found.group(),
            "span": found.span(),
            "original": row[column],
            "other": " ".join(row[name] for name in columns if name != column),
        }
        for number, column in enumerate(columns)
        for position, found in enumerate(WORD.finditer(row[column]))
    ]


def _across(edit: dict[str, Any], near: NearWords) -> list[str]:
    """The word of the other text of a pair that is nearest to the word."""
    found = near.nearest_of(edit["from"].lower(), words_of(edit["other"]))
    return [] if found is None else [found]


def _variants(edit: dict[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
    """The word left out, and each of `words` in its place."""
    text, (start, end) = edit["original"], edit["span"]
    texts: dict[str | None, str] = {None: without(text, start, end)}
    texts |= {word: instead(text, start, end, word) for word in words}
    return [{**edit, "to": word, "changed": changed} for word, changed in texts.items()]


def _told(edit: dict[str, Any], before: Predicted, row: int, after: Predicted, place: int) -> dict[str, Any]:
    told = {key: edit[key] for key in ("text", "position", "from", "to", "changed")}
    told |= {"before": float(before.values[row]), "after": float(after.values[place])}
    for name, of, at in (("confidence_before", before, row), ("confidence_after", after, place)):
        if of.probabilities is not None:
            told[name] = float(of.probabilities[at, int(of.values[at])])
    return told
