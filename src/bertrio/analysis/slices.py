"""Slices of dev: groups of rows with a property that models are known to fail on, and the metric of each.

A family assigns each row to one of its slices. Families are functions `(Facts) -> Slices`; a new one is a function and
a line in `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pandas as pd

from bertrio.analysis.words import count_words, words_of
from bertrio.core.tasks import Array, Binary, MultiLabel, Score, Task
from bertrio.data.splits import hash_texts
from bertrio.evaluation.calibration import wilson
from bertrio.evaluation.intervals import bootstrap, generator_for, interval
from bertrio.evaluation.metrics import METRICS
from bertrio.evaluation.predictions import Scored

MIN_SLICE_ROWS = 5  # smaller slices are not measured
LENGTHS = (10, 20, 40)  # words
LENGTH_NAMES = ["up to 10 words", "11 to 20 words", "21 to 40 words", "over 40 words"]
OVERLAPS = (0.25, 0.5)  # Jaccard
RARE = 5  # occurrences in train below which a word is rare
RESAMPLES = 2000  # fewer than for all rows, because there are many slices and their intervals are wide
BANDS = 5  # label ranges of a score
NEGATIONS = (  # in addition to words that end in n't
    "no", "not", "never", "none", "nothing", "nobody", "nowhere", "neither", "nor", "cannot", "without", "hardly",
    "barely", "scarcely",
)  # fmt: skip


Slices: TypeAlias = pd.Categorical  # [N]; its categories are all slices of the family, in display order


@dataclass(frozen=True)
class Facts:
    """Input of all families.

    Args:
        task: the task of the rows.
        rows: [N] rows of dev.
        train: training rows.
    """

    task: Task
    rows: pd.DataFrame
    train: pd.DataFrame

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Number of occurrences of each word in train."""
        return count_words(self.train, self.task.text_columns)

    @cached_property
    def labels(self) -> Array:
        """Labels [N]."""
        return self.rows["label"].to_numpy(np.float64)

    @cached_property
    def words(self) -> list[list[list[str]]]:
        """Words of each text of each row, by text and row: [1 or 2][N]."""
        return [[words_of(text) for text in self.rows[column]] for column in self.task.text_columns]

    @cached_property
    def overlap(self) -> Array:
        """Jaccard similarity of the words of both texts [N], 0 to 1."""
        return np.array([_jaccard(set(one), set(other)) for one, other in zip(*self.words)])


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0


def length(facts: Facts) -> Slices:
    """Slice by the number of words, for pairs of the longer text."""
    longest = np.array([max(map(len, texts)) for texts in zip(*facts.words)])
    return _binned(longest, [limit + 1 for limit in LENGTHS], LENGTH_NAMES)


def negation(facts: Facts) -> Slices:
    """Slice by negation in the text, for pairs by the number of texts with one."""
    negated = np.sum([[_has_negation(words) for words in texts] for texts in facts.words], axis=0)
    single = ["without negation", "with negation"]
    names = single if len(facts.words) == 1 else ["in neither text", "in one text alone", "in both texts"]
    return pd.Categorical.from_codes(negated, names)


def _has_negation(words: list[str]) -> bool:
    return any(word in NEGATIONS or word.endswith(("n't", "n\u2019t")) for word in words)


def rare_words(facts: Facts) -> Slices:
    """Slice by the number of occurrences in train of the row's rarest word."""
    in_train = [[facts.counts.get(word, 0) for words in texts for word in words] for texts in zip(*facts.words)]
    rarest = [min(counts, default=RARE) for counts in in_train]
    names = ["a word never seen", f"a word seen 1 to {RARE - 1} times", f"all words seen {RARE} times or more"]
    return _binned(np.array(rarest), [1, RARE], names)


def overlap(facts: Facts) -> Slices:
    """Slice by the share of words that both texts of a pair have, see `Facts.overlap`."""
    low, high = OVERLAPS
    return _binned(facts.overlap, OVERLAPS, [f"below {low}", f"{low} to {high}", f"{high} and over"])


def misleading_overlap(facts: Facts) -> Slices:
    """Slice by whether the word overlap of a pair contradicts its label; scores above the middle count as alike."""
    target = facts.task.target
    yes, no = ("alike", "not alike") if isinstance(target, Score) else ("a paraphrase", "not a paraphrase")
    alike = facts.labels > ((target.low + target.high) / 2 if isinstance(target, Score) else 0.5)
    tricky = np.select(
        [~alike & (facts.overlap >= OVERLAPS[1]), alike & (facts.overlap < OVERLAPS[0])], [0, 1], default=2
    )
    return pd.Categorical.from_codes(tricky, [f"high overlap, but {no}", f"low overlap, but {yes}", "all others"])


def label(facts: Facts) -> Slices:
    """Slice by class, by the number of classes in a set, or by `BANDS` equal parts of the range of a score."""
    target = facts.task.target
    if isinstance(target, MultiLabel):
        names = ["label without a class", "one class", "two classes", "three classes or more"]
        return _binned(target.encode(facts.labels).sum(axis=1), [1, 2, 3], names)
    if not isinstance(target, Score):
        classes = facts.labels.astype(np.int64)
        return pd.Categorical.from_codes(classes, [f"label {target.name_of(i)}" for i in range(max(2, target.size))])
    edges = np.linspace(target.low, target.high, BANDS + 1)
    return _binned(facts.labels, edges[1:-1], [f"label {low:g} to {high:g}" for low, high in pairwise(edges)])


def seen_in_train(facts: Facts) -> Slices:
    """Slice by whether train has one of the row's texts, ignoring case and white space, see `hash_texts`."""
    columns = facts.task.text_columns
    known = np.concatenate([hash_texts(facts.train[column]) for column in columns])
    seen = np.any([np.isin(hash_texts(facts.rows[column]), known) for column in columns], axis=0)
    return pd.Categorical.from_codes(seen.astype(int), ["no text is in train", "a text is in train"])


def _binned(values: Array, limits: Sequence[float] | Array, names: list[str]) -> Slices:
    """Return the bin of each value; a value at a limit is in the bin above it."""
    return pd.Categorical.from_codes(np.digitize(values, limits), names)


def families(task: Task) -> dict[str, Callable[[Facts], Slices]]:
    """Return the families that apply to a task, in display order."""
    pair = {"overlap": overlap} if task.kind == "pair" else {}
    if pair and isinstance(task.target, (Binary, Score)):  # the label says whether a pair is alike
        pair["misleading overlap"] = misleading_overlap
    common = {"label": label, "length": length, "negation": negation}
    return {**common, **pair, "rare words": rare_words, "shared with train": seen_in_train}


def slice_metric(task: Task) -> str:
    """Return the metric that slices are compared by: accuracy for classes, the root mean squared error for scores.

    It can differ from the task's main metric: correlations are low in slices with a narrow range of labels (Pearson
    1903, restriction of range), and F1 and the area under the curve are undefined in slices with one label.
    """
    return "accuracy" if task.target.discrete else "rmse"


def measure_slices(facts: Facts, scored: Scored) -> pd.DataFrame:
    """Compute the metric of `slice_metric` on all rows, and on every slice of `MIN_SLICE_ROWS` rows or more.

    Families with a single such slice are left out.

    Args:
        facts: facts of the labelled rows.
        scored: their predictions.

    Returns:
        Columns `family`, `slice`, `n` (rows), `value`, `low`, `high` (a 95 % interval), and a column for the task's
        main metric if that is another one.
    """
    metric, main = slice_metric(facts.task), facts.task.target.metrics[0]
    columns = ["family", "slice", "n", "value", "low", "high", *([main] if main != metric else [])]
    parts = {"all": pd.Categorical(["all rows"] * len(scored.labels))}
    parts |= {name: family(facts) for name, family in families(facts.task).items()}
    lines = []
    for family, slices in parts.items():
        sizes = slices.value_counts()
        shown = [name for name in slices.categories if sizes[name] >= MIN_SLICE_ROWS]
        for name in shown if len(shown) > 1 or family == "all" else ():  # a single slice is the same as all rows
            rows = scored.take(np.asarray(slices == name))
            value = METRICS[metric](rows)
            if metric == "accuracy":  # the bootstrap of a few correct rows would be [1, 1]
                low, high = map(float, wilson(value, len(rows.labels)))
            else:
                generator = generator_for(f"{family}/{name}", facts.task.name)
                low, high = interval(bootstrap(rows, {metric: RESAMPLES}, generator)[metric])
            lines.append([family, name, int(sizes[name]), value, low, high, METRICS[main](rows)][: len(columns)])
    return pd.DataFrame(lines, columns=columns)


def as_json(slices: pd.DataFrame, metric: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return `{family: {slice: {"n", metric: value, "low", "high"}}}`, with the column of the main metric, if any."""
    table = slices.rename(columns={"value": metric}).set_index("slice")
    return {
        family: part.drop(columns="family").to_dict("index") for family, part in table.groupby("family", sort=False)
    }
