"""How often a prediction changes when the text does and its meaning does not.

Each perturbation is a small edit that should leave the label as it is: the invariance tests of Ribeiro et al. 2020,
"Beyond Accuracy: Behavioral Testing of NLP Models with CheckList" (typos, contractions, punctuation, names, swapped
questions, swapped gender), and the appended clause of Naik et al. 2018, "Stress Test Evaluation for Natural Language
Inference". Both texts of a pair are edited by the same rule, so that what they have in common stays in common; but for
`typo`, of which each text gets one of its own.

A function of one text gives the edited text, or None where there is nothing to edit. It depends on the text alone:
what it draws, it draws from a generator seeded with the text, so that it is edited the same way wherever it stands.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.files import write_json
from bertrio.core.tasks import Array, Task
from bertrio.evaluation.calibration import wilson

if TYPE_CHECKING:
    from bertrio.analysis.scorer import Scorer

Texts = tuple[str, ...]

CLAUSE = "This was written today."
AUXILIARIES = "is|are|was|were|do|does|did|has|have|had|could|should|would|must|need"
IRREGULAR = {"can not": "can't", "cannot": "can't", "will not": "won't"}
SUBJECTS = "i|you|he|she|it|we|they|this|that|there|the|my|your|people"  # "don't you" is no "do not you"
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


def typo(text: str, seed: int = 0) -> str | None:
    """Two neighbouring letters inside one word of four or more change places; its first and last letter stay."""
    places = [
        place
        for word in re.finditer(r"[^\W\d_]{4,}", text)
        for place in range(word.start() + 1, word.end() - 2)
        if text[place] != text[place + 1]
    ]
    if not places:
        return None
    place = random.Random(f"{seed} {text}").choice(places)
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


def lower_case(text: str) -> str | None:
    """All letters small. Encoders without case can't see it."""
    return _if_changed(text, text.lower())


def upper_case(text: str) -> str | None:
    """All letters capital. Encoders without case can't see it."""
    return _if_changed(text, text.upper())


def punctuation_removed(text: str) -> str | None:
    """Full stops, commas, colons, semicolons and question marks at the ends of words go; an exclamation mark stays,
    for it can be all there is of a sentiment."""
    return _if_changed(text, re.sub(r"\s*[.,;:?]+(?=\s|$)", "", text).strip())


def punctuation_added(text: str) -> str | None:
    """A full stop where the text ends in a letter or digit; a second one, or question mark, where it ends in one."""
    if text[-1:].isalnum():
        return f"{text}."
    return text + text[-1] if text[-1:] in (".", "?") else None


def contracted(text: str) -> str | None:
    """Negated auxiliaries, and pronouns with is, are, am and will: "do not" becomes "don't", "it is" "it's"."""
    short = text
    for long, brief in IRREGULAR.items():
        short = re.sub(rf"\b{long}\b", _cased(_always(brief)), short, flags=re.IGNORECASE)
    goes_on = r"(?= (?!n['\u2019]t)\w)"  # not at the end, as in "as old as I am", nor where "it is n't" goes on
    rules = {
        rf"\b({AUXILIARIES}) not\b": r"\1n't",
        rf"\b(i) am{goes_on}": r"\1'm",
        rf"\b(you|we|they) are{goes_on}": r"\1're",
        rf"\b(it|that|he|she|there) is{goes_on}": r"\1's",
        rf"\b(i|you|he|she|it|we|they) will{goes_on}": r"\1'll",
    }
    return _if_changed(text, _replaced(short, rules))


def expanded(text: str) -> str | None:
    """The reverse: "don't" becomes "do not", also where a space parts them ("do n't").

    Left alone are 's and 'd, which can stand for two words each, and negations before a subject, which would have to
    change places with it.
    """
    before = rf"(?!\s+(?:{SUBJECTS})\b)"
    rules = {
        rf"\b(ca) ?n['\u2019]t\b{before}": r"\1nnot",
        rf"\b(w)o ?n['\u2019]t\b{before}": r"\1ill not",
        rf"\b({AUXILIARIES}) ?n['\u2019]t\b{before}": r"\1 not",
        r"\b(i) ?['\u2019]m\b": r"\1 am",
        r"\b(you|we|they) ?['\u2019]re\b": r"\1 are",
        r"\b(i|you|he|she|it|we|they) ?['\u2019]ll\b": r"\1 will",
        r"\b(i|you|we|they|could|should|would|might) ?['\u2019]ve\b": r"\1 have",
    }
    return _if_changed(text, _replaced(text, rules))


def clause_appended(text: str) -> str:
    """A sentence that says nothing of the matter follows."""
    return f"{text}{'' if text[-1:] in ('.', '!', '?') else '.'} {CLAUSE}"


def gender_swapped(text: str) -> str | None:
    """Words for men become those for women and the other way round, all at once: "he" and "she", "actress" and "actor".

    What "her" was, "him" or "his", is guessed from the word after it.
    """

    def other(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word != "her":
            return COUNTERPARTS[word]
        following = re.match(r" (\w+)", match.string[match.end() :])
        return "his" if following and following[1].lower() not in AFTER_OBJECT.split() else "him"

    words = "|".join(sorted([*COUNTERPARTS, "her"], key=len, reverse=True))
    return _if_changed(text, re.sub(rf"\b(?:{words})\b", _cased(other), text, flags=re.IGNORECASE))


def names_swapped(text: str) -> str | None:
    """First names become others that are as frequent, of the same gender; a name becomes the same one everywhere."""
    swapped = _cased(lambda match: STAND_INS[match[0].lower()])
    return _if_changed(text, re.sub(rf"\b(?:{'|'.join(STAND_INS)})\b", swapped, text, flags=re.IGNORECASE))


def order_swapped(texts: Texts) -> Texts | None:
    """The second text of a pair comes first."""
    return texts[::-1] if len(set(texts)) == 2 else None


def each(edit: Callable[[str], str | None]) -> Callable[[Texts], Texts | None]:
    """`edit` for every text of a row that has something to edit; None where none has."""

    def edited(texts: Texts) -> Texts | None:
        found = [edit(text) for text in texts]
        if all(new is None for new in found):
            return None
        return tuple(text if new is None else new for text, new in zip(texts, found))

    return edited


EDITS = (
    typo, lower_case, upper_case, punctuation_removed, punctuation_added, contracted, expanded, clause_appended,
    gender_swapped, names_swapped,
)  # fmt: skip
SINGLE = {edit.__name__: each(edit) for edit in EDITS}


def perturbations(task: Task) -> dict[str, Callable[[Texts], Texts | None]]:
    """Those that leave the labels of a task as they are, by name."""
    turned = task.kind == "pair" and task.target.symmetric
    return SINGLE | ({"order_swapped": order_swapped} if turned else {})


def write_robustness(
    scorer: Scorer, tasks: Mapping[str, Task], rows_by_task: Mapping[str, pd.DataFrame], path: str | Path
) -> None:
    """Writes `{task: {"model": the name of the model that was asked, perturbation: figures}}`; see `robustness`.

    Args:
        scorer: the model to try.
        tasks: all tasks, by name.
        rows_by_task: the rows to try it on, with the task's text columns.
        path: of the JSON file.
    """
    found = {
        name: {"model": scorer.models[name].name, **robustness(scorer, tasks[name], rows)}
        for name, rows in rows_by_task.items()
    }
    write_json(path, found)


def robustness(scorer: Scorer, task: Task, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """What each perturbation does to the predictions for `rows`; no labels are needed.

    Returns:
        By perturbation: `n`, the rows that it applies to; `flips`, the share of them whose prediction changes (of a
        score: by more than a tenth of its range); `low` and `high`, its 95 % Wilson interval; `shift`, the mean
        absolute change of the probability of what was predicted, or of the score. All but `n` are None where n is 0.
    """
    texts = [tuple(row) for row in rows[list(task.text_columns)].itertuples(index=False)]
    asked, places = list(texts), {}
    for name, perturb in perturbations(task).items():
        edited = [(row, new) for row, text in enumerate(texts) if (new := perturb(text)) is not None]
        places[name] = [row for row, _ in edited], range(len(asked), len(asked) + len(edited))
        asked += [new for _, new in edited]
    predicted = scorer.predict(task.name, pd.DataFrame(asked, columns=list(task.text_columns)))
    return {
        name: _figures(*task.target.change(predicted.take(before), predicted.take(after)))
        for name, (before, after) in places.items()
    }


def _figures(flipped: NDArray[np.bool_], shift: Array) -> dict[str, Any]:
    n = len(flipped)
    if not n:
        return {"n": 0, "flips": None, "shift": None, "low": None, "high": None}
    flips = float(np.mean(flipped))
    low, high = wilson(flips, n)
    return {"n": n, "flips": flips, "shift": float(np.mean(shift)), "low": float(low), "high": float(high)}


def _if_changed(text: str, new: str) -> str | None:
    return new if new and new != text else None


def _replaced(text: str, rules: Mapping[str, str]) -> str:
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def _always(word: str) -> Callable[[re.Match[str]], str]:
    return lambda match: word


def _cased(word_for: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
    """The word for a match, in capitals or with a capital first letter where the match has them."""

    def cased(match: re.Match[str]) -> str:
        word = word_for(match)
        if match[0].isupper() and len(match[0]) > 1:
            return word.upper()
        return word[0].upper() + word[1:] if match[0][0].isupper() else word

    return cased
