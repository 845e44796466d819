"""How often a prediction changes when the text does and its meaning does not.

Each perturbation is a small edit that should leave the label as it is: the invariance tests of Ribeiro et al. 2020,
"Beyond Accuracy: Behavioral Testing of NLP Models with CheckList" (typos, contractions, punctuation, names, swapped
questions, swapped gender), and the appended clause of Naik et al. 2018, "Stress Test Evaluation for Natural Language
Inference". Both texts of a pair are edited by the same rule, so that what they have in common stays in common; but for
`typo`, of which each text gets one of its own.

An edit is a function of one text, which it returns unchanged where there is nothing to edit. What it draws, it draws
from a generator seeded with the text, so that a text is edited the same way wherever it stands.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bertrio.core.tasks import Task
from bertrio.evaluation.calibration import wilson

if TYPE_CHECKING:
    from bertrio.analysis.scorer import Scorer

Texts = tuple[str, ...]

CLAUSE = "This was written today."
AUXILIARIES = "is|are|was|were|do|does|did|has|have|had|could|should|would|must|need"
IRREGULAR = {"can not": "can't", "cannot": "can't", "will not": "won't"}
GOES_ON = r"(?= (?!n['\u2019]t)\w)"  # not at the end, as in "as old as I am", nor where "it is n't" goes on
CONTRACTIONS = {
    rf"\b({AUXILIARIES}) not\b": r"\1n't",
    rf"\b(i) am{GOES_ON}": r"\1'm",
    rf"\b(you|we|they) are{GOES_ON}": r"\1're",
    rf"\b(it|that|he|she|there) is{GOES_ON}": r"\1's",
    rf"\b(i|you|he|she|it|we|they) will{GOES_ON}": r"\1'll",
}
BEFORE = r"(?!\s+(?:i|you|he|she|it|we|they|this|that|there|the|my|your|people)\b)"  # "don't you" is no "do not you"
EXPANSIONS = {  # not 's and 'd, which can stand for two words each
    rf"\b(ca) ?n['\u2019]t\b{BEFORE}": r"\1nnot",
    rf"\b(w)o ?n['\u2019]t\b{BEFORE}": r"\1ill not",
    rf"\b({AUXILIARIES}) ?n['\u2019]t\b{BEFORE}": r"\1 not",
    r"\b(i) ?['\u2019]m\b": r"\1 am",
    r"\b(you|we|they) ?['\u2019]re\b": r"\1 are",
    r"\b(i|you|he|she|it|we|they) ?['\u2019]ll\b": r"\1 will",
    r"\b(i|you|we|they|could|should|would|might) ?['\u2019]ve\b": r"\1 have",
}
GENDERED = (
    "he-she himself-herself man-woman men-women boy-girl boys-girls father-mother fathers-mothers dad-mom son-daughter "
    "sons-daughters brother-sister brothers-sisters husband-wife husbands-wives uncle-aunt grandfather-grandmother "
    "nephew-niece actor-actress actors-actresses gentleman-lady gentlemen-ladies male-female males-females"
)
COUNTERPARTS = {  # "her" can be two words, see `gender_swapped`
    word: other for pair in GENDERED.split() for word, other in (pair.split("-"), pair.split("-")[::-1])
} | {"him": "her", "his": "her", "hers": "his"}
AFTER_OBJECT = (  # after "her", these say that it stood for "him"; else it stood for "his"
    "a about after against and as at because before but by for from if in into is of off on or out over so than that "
    "the through to until up was when while who with"
)
NAMES = (  # frequent, and no words of other meaning; a name's stand-in is the next of its row
    "James Robert John Michael David William Richard Joseph Thomas Charles Christopher Daniel Matthew Anthony Steven "
    "Paul Andrew Joshua Kenneth Kevin Brian George Edward Peter",
    "Mary Patricia Jennifer Linda Elizabeth Barbara Susan Jessica Sarah Karen Lisa Nancy Margaret Sandra Ashley Emily "
    "Michelle Amanda Melissa Stephanie Rebecca Laura Anna Julia",
)
STAND_INS = {
    name: following
    for row in (names.lower().split() for names in NAMES)
    for name, following in zip(row, [*row[1:], row[0]])
}


def typo(text: str) -> str:
    """Two neighbouring letters inside one word of four or more change places; its first and last letter stay."""
    places = [
        place
        for word in re.finditer(r"[^\W\d_]{4,}", text)
        for place in range(word.start() + 1, word.end() - 2)
        if text[place] != text[place + 1]
    ]
    if not places:
        return text
    place = random.Random(f"0 {text}").choice(places)
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


def punctuation_removed(text: str) -> str:
    """Full stops, commas, colons, semicolons and question marks at the ends of words go; an exclamation mark stays,
    for it can be all there is of a sentiment."""
    return re.sub(r"\s*[.,;:?]+(?=\s|$)", "", text).strip()


def punctuation_added(text: str) -> str:
    """A full stop where the text ends in a letter or digit; a second one, or question mark, where it ends in one."""
    if text[-1:].isalnum():
        return f"{text}."
    return text + text[-1] if text[-1:] in (".", "?") else text


def contracted(text: str) -> str:
    """Negated auxiliaries, and pronouns with is, are, am and will: "do not" becomes "don't", "it is" "it's"."""
    return _substituted(_swapped(text, IRREGULAR, lambda match: IRREGULAR[match[0].lower()]), CONTRACTIONS)


def expanded(text: str) -> str:
    """The reverse: "don't" becomes "do not", also where a space parts them ("do n't").

    Negations before a subject, which would have to change places with it, stay.
    """
    return _substituted(text, EXPANSIONS)


def clause_appended(text: str) -> str:
    """A sentence that says nothing of the matter follows."""
    return f"{text}{'' if text[-1:] in ('.', '!', '?') else '.'} {CLAUSE}"


def gender_swapped(text: str) -> str:
    """Words for men become those for women and the other way round, all at once: "he" and "she", "actress" and "actor".

    What "her" was, "him" or "his", is guessed from the word after it.
    """

    def other(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word != "her":
            return COUNTERPARTS[word]
        following = re.match(r" (\w+)", match.string[match.end() :])
        return "his" if following and following[1].lower() not in AFTER_OBJECT.split() else "him"

    return _swapped(text, [*COUNTERPARTS, "her"], other)


def names_swapped(text: str) -> str:
    """First names become others that are as frequent, of the same gender; a name becomes the same one everywhere."""
    return _swapped(text, STAND_INS, lambda match: STAND_INS[match[0].lower()])


def order_swapped(texts: Texts) -> Texts:
    """The second text of a pair comes first."""
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
    """Return those that leave the labels of a task as they are, by name: functions of a row's texts."""
    by_name: dict[str, Callable[[Texts], Texts]] = {name: partial(edit_each, edit) for name, edit in EDITS.items()}
    turned = task.kind == "pair" and task.target.symmetric
    return by_name | ({"order_swapped": order_swapped} if turned else {})


def edit_each(edit: Callable[[str], str], texts: Texts) -> Texts:
    """Edit every text of a row; one of which nothing would be left stays."""
    return tuple(edit(text) or text for text in texts)


def robustness(scorer: Scorer, task: Task, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Measure what each perturbation does to the predictions for `rows`; no labels are needed.

    Returns:
        By perturbation: `n`, the rows that it changes; `flips`, the share of them whose prediction changes (of a
        score: by more than a tenth of its range); `low` and `high`, its 95 % Wilson interval; `shift`, the mean
        absolute change of the probability of what was predicted, or of the score. All but `n` are None where n is 0.
    """
    texts = [tuple(row) for row in rows[list(task.text_columns)].itertuples(index=False)]
    asked, places = list(texts), {}
    for name, perturb in perturbations(task).items():
        edited = [(row, new) for row, text in enumerate(texts) if (new := perturb(text)) != text]
        places[name] = [row for row, _ in edited], range(len(asked), len(asked) + len(edited))
        asked += [new for _, new in edited]
    predicted = scorer.predict(task.name, pd.DataFrame(asked, columns=list(task.text_columns)))
    figures: dict[str, dict[str, Any]] = {}
    for name, (before, after) in places.items():
        figures[name] = {"n": len(before), "flips": None, "shift": None, "low": None, "high": None}
        if before:
            flipped, shift = task.target.change(predicted.take(before), predicted.take(after))
            flips = float(np.mean(flipped))
            low, high = map(float, wilson(flips, len(before)))
            figures[name] |= {"flips": flips, "shift": float(np.mean(shift)), "low": low, "high": high}
    return figures


def _substituted(text: str, rules: Mapping[str, str]) -> str:
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def _swapped(text: str, words: Iterable[str], other: Callable[[re.Match[str]], str]) -> str:
    """Put another word in place of each of `words`, in capitals or with a capital first letter where that has them."""

    def cased(match: re.Match[str]) -> str:
        word = other(match)
        if match[0].isupper() and len(match[0]) > 1:
            return word.upper()
        return word[0].upper() + word[1:] if match[0][0].isupper() else word

    return re.sub(rf"\b(?:{'|'.join(words)})\b", cased, text, flags=re.IGNORECASE)
