"""Simple baselines on word counts, as a reference for a model's scores.

scikit-learn is imported only when a baseline is fitted, because the import is slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bertrio.core.tasks import Task

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

WORD = re.compile(r"\w+")
MAX_TRAIN_ROWS = 20000  # larger tables are sampled down to this size
Scores = dict[str, dict[str, float]]  # by baseline and metric


def simple_baselines(tables: Mapping[str, Mapping[str, pd.DataFrame]], tasks: Mapping[str, Task]) -> dict[str, Scores]:
    """Score word-count baselines on dev.

    Args:
        tables: rows by task and split; `train` and `dev` are read.
        tasks: by name, with the same keys as `tables`.

    Returns:
        By task: `{"bag_of_words": {"accuracy": 0 to 1}}` for classes and binary targets, and
        `{"word_overlap": {"pearson": -1 to 1}}` for pairs with a score. Tasks without a baseline (scores of single
        texts, sets of classes) and tasks without labelled rows in train and dev are left out.
    """
    scores: dict[str, Scores] = {}
    for name, task in tasks.items():
        train, dev = tables[name]["train"], tables[name]["dev"].dropna(subset=["label"])
        labelled = pd.Series(np.flatnonzero(train["label"].notna()))
        if labelled.empty or dev.empty or task.target.sets:
            continue
        if task.target.discrete:
            train = train.iloc[labelled.sample(min(len(labelled), MAX_TRAIN_ROWS), random_state=0)]
            scores[name] = {"bag_of_words": {"accuracy": bag_of_words_accuracy(train, dev, task)}}
        elif task.kind == "pair":
            scores[name] = {"word_overlap": {"pearson": word_overlap_pearson(dev)}}
    return scores


def bag_of_words_accuracy(train: pd.DataFrame, dev: pd.DataFrame, task: Task) -> float:
    """Accuracy on `dev` of a logistic regression over word counts.

    The features of a pair are the word counts of both texts and the absolute difference of the two, which lets the
    regression see shared words. If `train` has no words or a single class, the majority class is the prediction.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = CountVectorizer(token_pattern=WORD.pattern, dtype=np.float64)
    model = LogisticRegression(max_iter=200)  # lbfgs: no randomness
    try:
        vectorizer.fit(text for column in task.text_columns for text in train[column])
        model.fit(_features(vectorizer, train, task), train["label"])
    except ValueError:  # no text has a word, or there is one class
        return float((dev["label"] == train["label"].mode()[0]).mean())
    return float(model.score(_features(vectorizer, dev, task), dev["label"]))


def _features(vectorizer: CountVectorizer, table: pd.DataFrame, task: Task) -> csr_matrix:
    from scipy.sparse import hstack

    counts = [vectorizer.transform(table[column]) for column in task.text_columns]
    return hstack([*counts, abs(counts[0] - counts[1])], format="csr") if len(counts) == 2 else counts[0]


def word_overlap_pearson(dev: pd.DataFrame) -> float:
    """Pearson correlation of the label with the Jaccard overlap of the two texts' words, lower-cased.

    Return 0 if either is constant.
    """
    overlap = np.fromiter(map(_jaccard, dev["text_a"], dev["text_b"]), dtype=np.float64)
    if np.ptp(overlap) == 0 or np.ptp(dev["label"]) == 0:
        return 0.0
    return float(np.corrcoef(overlap, dev["label"])[0, 1])


def _jaccard(a: str, b: str) -> float:
    words_a, words_b = set(WORD.findall(a.lower())), set(WORD.findall(b.lower()))
    union = words_a | words_b
    return len(words_a & words_b) / len(union) if union else 1.0
