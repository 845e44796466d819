"""The rows that a model gets most wrong, what it has seen that is like them, and the one word that decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bertrio.analysis.scorer import Scorer
from bertrio.analysis.words import WORD, NearWords, instead, unit, without, words_of
from bertrio.core.tasks import Array, Predicted, Task
from bertrio.evaluation.predictions import Scored


def row_error(scored: Scored, task: Task) -> Array:
    """How wrong each row [N] is: the confidence in a wrong class and 0 for right rows, or the distance of the score."""
    if task.target.discrete and len(scored.labels):
        return np.where(scored.labels == scored.predictions, 0.0, scored.confidence)
    return np.abs(scored.predictions - scored.labels)


def describe_worst(
    scorer: Scorer, task: Task, rows: pd.DataFrame, train: pd.DataFrame, near: NearWords, neighbours: int, words: int
) -> list[dict[str, Any]]:
    """Describe the worst rows, in their order.

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
        for row, like, change in zip(rows.to_dict("records"), seen, changes)
    ]


def nearest(
    scorer: Scorer, task: Task, rows: pd.DataFrame, train: pd.DataFrame, count: int
) -> list[list[dict[str, Any]]]:
    """Find the training rows nearest to each row by the cosine of their pooled vectors, the nearest first.

    Returns:
        For each row a list of `{"id", "texts", "label", "similarity"}`.
    """
    if rows.empty or train.empty:
        return [[] for _ in range(len(rows))]
    one, other = (unit(scorer.embed(task.name, frame)) for frame in (rows, train))
    cosines = one @ other.T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return [
        [
            {
                "id": seen["id"],
                "texts": [seen[column] for column in task.text_columns],
                "label": float(seen["label"]),
                "similarity": float(cosine[place]),
            }
            for place, seen in zip(places, train.iloc[places].to_dict("records"))
        ]
        for places, cosine in zip(order, cosines)
    ]


def strongest_changes(
    scorer: Scorer, task: Task, rows: pd.DataFrame, near: NearWords, words: int
) -> list[dict[str, Any] | None]:
    """Find for each row the change of one word that moves the prediction most.

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
    columns = list(task.text_columns)
    texts = rows[columns].to_numpy().tolist()
    options = near.near((word for row in texts for text in row for word in words_of(text)), words)
    edits = list(_edits(texts, options, near))
    changed = [list(texts[edit["row"]]) for edit in edits]
    for edit, row in zip(edits, changed):
        row[edit["text"]] = edit["changed"]
    before = scorer.predict(task.name, rows)
    after = scorer.predict(task.name, pd.DataFrame(changed, columns=columns, dtype=object))
    places = [edit["row"] for edit in edits]
    moved = pd.Series(distance(before.take(places), after))
    best = moved.groupby(np.array(places, dtype=np.int64)).idxmax() if edits else {}
    return [
        _change(edits[best[row]], before.take([row]), after.take([best[row]])) if row in best else None
        for row in range(len(texts))
    ]


def distance(one: Predicted, other: Predicted) -> Array:
    """How far apart two predictions for each row [N] are: total variation, 0 to 1, or the difference of the scores."""
    if one.probabilities is None or other.probabilities is None:
        return np.abs(one.values - other.values)
    return np.abs(one.probabilities - other.probabilities).sum(axis=1) / 2


def _edits(
    texts: Sequence[Sequence[str]], options: Mapping[str, Sequence[str]], near: NearWords
) -> Iterator[dict[str, Any]]:
    """Every word of every row left out, and replaced by each of its `options` and by the nearest word of the other
    text."""
    for row, pair in enumerate(texts):
        for number, text in enumerate(pair):
            across = words_of(" ".join([*pair[:number], *pair[number + 1 :]]))
            for position, match in enumerate(WORD.finditer(text)):
                word = match.group().lower()
                nearest_there = near.nearest_of(word, across)
                for to in dict.fromkeys([None, *options.get(word, ()), *([nearest_there] if nearest_there else [])]):
                    changed = without(text, *match.span()) if to is None else instead(text, *match.span(), to)
                    edit = {"row": row, "text": number, "position": position, "from": match.group(), "to": to}
                    yield {**edit, "changed": changed}


def _change(edit: dict[str, Any], before: Predicted, after: Predicted) -> dict[str, Any]:
    """Return an edit with the predictions of its row before and after it."""
    change = {key: value for key, value in edit.items() if key != "row"}
    change |= {"before": float(before.values[0]), "after": float(after.values[0])}
    for name, predicted in (("confidence_before", before), ("confidence_after", after)):
        if predicted.probabilities is not None:
            change[name] = float(predicted.probabilities[0, int(predicted.values[0])])
    return change
