"""Robustness of predictions to changes of a text that keep its meaning.

Each perturbation is a small edit that should leave the label as it is: the invariance tests of Ribeiro et al. 2020,
"Beyond Accuracy: Behavioral Testing of NLP Models with CheckList" (typos, contractions, punctuation, names, swapped
questions, swapped gender), and the appended clause of Naik et al. 2018, "Stress Test Evaluation for Natural Language
Inference". Both texts of a pair are edited by the same rule, so that shared words stay shared; only `typo` edits each
text independently.

An edit is a function of one text and returns it unchanged if there is nothing to edit. Random choices come from a
generator seeded with the text, so that equal texts are edited alike.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from bertrio.core.gender import gender_swapped, replace_words, towards_women
from bertrio.core.tasks import Task
from bertrio.evaluation.calibration import wilson
from bertrio.inference.trained_model import TrainedModel

Texts = tuple[str, ...]

CLAUSE = "This was written today."
AUXILIARIES = "is|are|was|were|do|does|did|has|have|had|could|should|would|must|need"
IRREGULAR = {"can not": "can't", "cannot": "can't", "will not": "won't"}
WORD_FOLLOWS = r"(?= (?!n['\u2019]t)\w)"  # neither at the end, as in "as old as I am", nor before the n't of "is n't"
CONTRACTIONS = {
    rf"\b({AUXILIARIES}) not\b": r"\1n't",
    rf"\b(i) am{WORD_FOLLOWS}": r"\1'm",
    rf"\b(you|we|they) are{WORD_FOLLOWS}": r"\1're",
    rf"\b(it|that|he|she|there) is{WORD_FOLLOWS}": r"\1's",
    rf"\b(i|you|he|she|it|we|they) will{WORD_FOLLOWS}": r"\1'll",
}
# No subject may follow: "don't you" is not "do not you"
NO_SUBJECT = r"(?!\s+(?:i|you|he|she|it|we|they|this|that|there|the|my|your|people)\b)"
EXPANSIONS = {  # without 's and 'd, which are ambiguous
    rf"\b(ca) ?n['\u2019]t\b{NO_SUBJECT}": r"\1nnot",
    rf"\b(w)o ?n['\u2019]t\b{NO_SUBJECT}": r"\1ill not",
    rf"\b({AUXILIARIES}) ?n['\u2019]t\b{NO_SUBJECT}": r"\1 not",
    r"\b(i) ?['\u2019]m\b": r"\1 am",
    r"\b(you|we|they) ?['\u2019]re\b": r"\1 are",
    r"\b(i|you|he|she|it|we|they) ?['\u2019]ll\b": r"\1 will",
    r"\b(i|you|we|they|could|should|would|might) ?['\u2019]ve\b": r"\1 have",
}
NAMES = (  # frequent first names that are not other words; each is replaced by the next of its row
    "James Robert John Michael David William Richard Joseph Thomas Charles Christopher Daniel Matthew Anthony Steven "
    "Paul Andrew Joshua Kenneth Kevin Brian George Edward Peter",
    "Mary Patricia Jennifer Linda Elizabeth Barbara Susan Jessica Sarah Karen Lisa Nancy Margaret Sandra Ashley Emily "
    "Michelle Amanda Melissa Stephanie Rebecca Laura Anna Julia",
)
REPLACEMENT_NAMES = {
    name: following
    for row in (names.lower().split() for names in NAMES)
    for name, following in zip(row, [*row[1:], row[0]])
}


def typo(text: str) -> str:
    """Swap two neighbouring letters inside a word of four or more letters; its first and last letter stay."""
    positions = [
        position
        for word in re.finditer(r"[^\W\d_]{4,}", text)
        for position in range(word.start() + 1, word.end() - 2)
        if text[position] != text[position + 1]
    ]
    if not positions:
        return text
    position = random.Random(f"0 {text}").choice(positions)
    return text[:position] + text[position + 1] + text[position] + text[position + 2 :]


def punctuation_removed(text: str) -> str:
    """Remove full stops, commas, colons, semicolons and question marks at the ends of words.

    Exclamation marks stay, since one alone can carry the sentiment.
    """
    return re.sub(r"\s*[.,;:?]+(?=\s|$)", "", text).strip()


def punctuation_added(text: str) -> str:
    """Add a full stop after a final letter or digit, and double a final full stop or question mark."""
    if text[-1:].isalnum():
        return f"{text}."
    return text + text[-1] if text[-1:] in (".", "?") else text


def contracted(text: str) -> str:
    """Contract negated auxiliaries, and pronouns with is, are, am and will: "do not" to "don't", "it is" to "it's"."""
    return _substituted(replace_words(text, IRREGULAR, lambda match: IRREGULAR[match[0].lower()]), CONTRACTIONS)


def expanded(text: str) -> str:
    """Expand contractions, also those with a space: "don't" and "do n't" to "do not".

    Negations before a subject stay, since expanding them would change the word order.
    """
    return _substituted(text, EXPANSIONS)


def clause_appended(text: str) -> str:
    """Append a sentence that has nothing to do with the text."""
    return f"{text}{'' if text[-1:] in ('.', '!', '?') else '.'} {CLAUSE}"


def names_swapped(text: str) -> str:
    """Replace each first name by a fixed one of the same gender and similar frequency."""
    return replace_words(text, REPLACEMENT_NAMES, lambda match: REPLACEMENT_NAMES[match[0].lower()])


def order_swapped(texts: Texts) -> Texts:
    """Swap the texts of a pair."""
    return texts[::-1]


EDITS: dict[str, Callable[[str], str]] = {
    "typo": typo,
    "lower_case": str.lower,
    "upper_case": str.upper,
    "punctuation_removed": punctuation_removed,
    "punctuation_added": punctuation_added,
    "contracted": contracted,
    "expanded": expanded,
    "clause_appended": clause_appended,
    "gender_swapped": gender_swapped,
    "names_swapped": names_swapped,
}


def perturbations(task: Task) -> dict[str, Callable[[Texts], Texts]]:
    """Return the perturbations that keep the labels of a task, by name: functions of a row's texts."""
    by_name: dict[str, Callable[[Texts], Texts]] = {name: partial(edit_each, edit) for name, edit in EDITS.items()}
    can_swap = task.kind == "pair" and task.target.symmetric
    return by_name | ({"order_swapped": order_swapped} if can_swap else {})


def edit_each(edit: Callable[[str], str], texts: Texts) -> Texts:
    """Edit each text of a row; a text whose edit would be empty stays as it is."""
    return tuple(edit(text) or text for text in texts)


def robustness(model: TrainedModel, task: Task, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Measure how each perturbation changes the predictions for `rows`; labels are not needed.

    Returns:
        By perturbation: `n`, the number of rows that it edits; `flips`, the share of them whose prediction changes
        (for scores by more than a tenth of the range); `low` and `high`, its 95 % Wilson interval; `shift`, the mean
        absolute change of the predicted class's probability, or of the score. All but `n` are None if `n` is 0.
        `gender_swapped` has the signed `bias` too, see `gender_bias`.
    """
    texts = [tuple(row) for row in rows[list(task.text_columns)].itertuples(index=False)]
    inputs, positions = list(texts), {}
    for name, perturb in perturbations(task).items():
        edited = [(row, new) for row, text in enumerate(texts) if (new := perturb(text)) != text]
        positions[name] = [row for row, _ in edited], range(len(inputs), len(inputs) + len(edited))
        inputs += [new for _, new in edited]
    predicted = model.predict(task.name, pd.DataFrame(inputs, columns=list(task.text_columns)))
    figures: dict[str, dict[str, Any]] = {}
    for name, (before, after) in positions.items():
        figures[name] = {"n": len(before), "flips": None, "shift": None, "low": None, "high": None}
        if before:
            flipped, shift = task.target.change(predicted.take(before), predicted.take(after))
            flips = float(np.mean(flipped))
            low, high = map(float, wilson(flips, len(before)))
            figures[name] |= {"flips": flips, "shift": float(np.mean(shift)), "low": low, "high": high}
    before, after = positions["gender_swapped"]
    signs = np.array([towards_women(inputs[row]) for row in before])
    levels = [task.target.expected(predicted.take(rows)) for rows in (before, after)]
    if levels[0] is not None and levels[1] is not None:
        figures["gender_swapped"] |= gender_bias((signs * (levels[1] - levels[0]))[signs != 0])
    return figures


def _substituted(text: str, rules: Mapping[str, str]) -> str:
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def gender_bias(changes: np.ndarray) -> dict[str, float | None]:
    """Return the mean change of the expected label from words for men to words for women.

    Above 0, the model gives higher labels to texts about women; flips alone do not tell whom a model favours.

    Args:
        changes: [N], of the rows with more words for one gender; 1 or no row has no bias.

    Returns:
        `bias` with the limits of its 95 % interval by Student's t, `bias_low` and `bias_high`.
    """
    if len(changes) < 2:
        return {"bias": None, "bias_low": None, "bias_high": None}
    mean = float(changes.mean())
    half = float(student_t.ppf(0.975, len(changes) - 1) * changes.std(ddof=1) / np.sqrt(len(changes)))
    return {"bias": mean, "bias_low": mean - half, "bias_high": mean + half}
