"""Worst rows of a model, their nearest training rows, and the one-word change that moves each prediction most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from bertrio.analysis.words import WORD, NearWords, delete_span, replace_span, unit, words_of
from bertrio.core.tasks import Array, Predicted, Task, probability_of
from bertrio.evaluation.predictions import Scored
from bertrio.inference.trained_model import TrainedModel

NEIGHBOURS = 3  # training rows shown beside each of the worst rows
WORDS = 5  # near words tried in place of each word of these rows


def row_error(scored: Scored, task: Task) -> Array:
    """Error of each row [N]: of classes the confidence if wrong, else 0; of scores the absolute error."""
    if task.target.discrete and len(scored.labels):
        return np.where(scored.labels == scored.predictions, 0.0, scored.confidence)
    return np.abs(scored.predictions - scored.labels)


def describe_worst(
    model: TrainedModel, task: Task, rows: pd.DataFrame, train: pd.DataFrame, near: NearWords
) -> list[dict[str, Any]]:
    """Describe the worst rows, in their order.

    Args:
        model: embeds training rows and predicts changed texts.
        task: the task of the rows.
        rows: rows with `id`, the task's text columns, `label`, `prediction` and `row_error`.
        train: rows to search for neighbours.
        near: finds replacement words.

    Returns:
        For each row `{"id", "texts", "label", "prediction", "confidence" or "error", "neighbours", "change"}`; see
        `nearest` and `strongest_changes`.
    """
    measure = "confidence" if task.target.discrete else "error"
    neighbour_rows = nearest(model, task, rows, train, NEIGHBOURS)
    changes = strongest_changes(model, task, rows, near, WORDS)
    return [
        {
            "id": row["id"],
            "texts": [row[column] for column in task.text_columns],
            "label": row["label"],
            "prediction": row["prediction"],
            measure: row["row_error"],
            "neighbours": similar,
            "change": change,
        }
        for row, similar, change in zip(rows.to_dict("records"), neighbour_rows, changes)
    ]


def nearest(
    model: TrainedModel, task: Task, rows: pd.DataFrame, train: pd.DataFrame, count: int
) -> list[list[dict[str, Any]]]:
    """Find the training rows nearest to each row by the cosine of their pooled vectors, the nearest first.

    A bi-encoded pair has the mean of its two vectors.

    Returns:
        For each row a list of `{"id", "texts", "label", "similarity"}`.
    """
    if rows.empty or train.empty:
        return [[] for _ in range(len(rows))]
    one, other = (unit(model.pooled(task.name, frame).mean(axis=1)) for frame in (rows, train))
    cosines = one @ other.T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return [
        [
            {
                "id": neighbour["id"],
                "texts": [neighbour[column] for column in task.text_columns],
                "label": float(neighbour["label"]),
                "similarity": float(cosine[position]),
            }
            for position, neighbour in zip(positions, train.iloc[positions].to_dict("records"))
        ]
        for positions, cosine in zip(order, cosines)
    ]


def strongest_changes(
    model: TrainedModel, task: Task, rows: pd.DataFrame, near: NearWords, words: int
) -> list[dict[str, Any] | None]:
    """Find for each row the change of one word that moves the prediction most.

    Each edit deletes one word, or replaces it by one of its near words or, in pairs, by the nearest word of the other
    text. `distance` measures how far a prediction moves. Example from "SMART Fine-tuning", section 6: the score of
    "It's also a matter of taste." and "It's definitely just a matter of preference." rises from 2.22 to 4.56 (label 5)
    when "preference" becomes "taste".

    Returns:
        For each row `{"text": index of the text, 0 or 1, "position": index of the word in that text, "from", "to":
        None for a deleted word, "changed": the changed text, "before", "after": predictions, and for classes
        "confidence_before", "confidence_after": their probabilities}`; None for a row without words.
    """
    columns = list(task.text_columns)
    texts = rows[columns].to_numpy().tolist()
    options = near.near((word for row in texts for text in row for word in words_of(text)), words)
    edits = list(_edits(texts, options, near, model.config.encoder.max_length))
    changed = [list(texts[edit["row"]]) for edit in edits]
    for edit, row in zip(edits, changed):
        row[edit["text"]] = edit["changed"]
    before = model.predict(task.name, rows)
    after = model.predict(task.name, pd.DataFrame(changed, columns=columns, dtype=object))
    row_of_edit, sets = [edit["row"] for edit in edits], task.target.sets
    moved = pd.Series(distance(before.take(row_of_edit), after))
    best = moved.groupby(np.array(row_of_edit, dtype=np.int64)).idxmax() if edits else {}
    return [
        _change(edits[best[row]], before.take([row]), after.take([best[row]]), sets) if row in best else None
        for row in range(len(texts))
    ]


def distance(one: Predicted, other: Predicted) -> Array:
    """Distance of two predictions for each row [N].

    For classes it is the total variation, 0 to 1: half the sum of absolute differences of probabilities, which is the
    largest change in probability of any set of classes. For scores it is the absolute difference.
    """
    if one.probabilities is None or other.probabilities is None:
        return np.abs(one.values - other.values)
    return np.abs(one.probabilities - other.probabilities).sum(axis=1) / 2


def _edits(
    texts: Sequence[Sequence[str]], options: Mapping[str, Sequence[str]], near: NearWords, max_words: int
) -> Iterator[dict[str, Any]]:
    """Yield all edits of one word: its deletion, and replacement by `options` or the nearest word of the other text.

    Of each text only the first `max_words` words are edited: the model does not read the others.
    """
    for row, pair in enumerate(texts):
        for number, text in enumerate(pair):
            other_words = words_of(" ".join([*pair[:number], *pair[number + 1 :]]))
            for position, match in enumerate(islice(WORD.finditer(text), max_words)):
                word = match.group().lower()
                nearest_other = near.nearest_of(word, other_words)
                for to in dict.fromkeys([None, *options.get(word, ()), *([nearest_other] if nearest_other else [])]):
                    changed = delete_span(text, *match.span()) if to is None else replace_span(text, *match.span(), to)
                    edit = {"row": row, "text": number, "position": position, "from": match.group(), "to": to}
                    yield {**edit, "changed": changed}


def _change(edit: dict[str, Any], before: Predicted, after: Predicted, sets: bool) -> dict[str, Any]:
    """Return an edit with the predictions of its row before and after it."""
    change = {key: value for key, value in edit.items() if key != "row"}
    change |= {"before": float(before.values[0]), "after": float(after.values[0])}
    for name, predicted in (("confidence_before", before), ("confidence_after", after)):
        if predicted.probabilities is not None:
            change[name] = float(probability_of(predicted.values, predicted.probabilities, sets)[0])
    return change
