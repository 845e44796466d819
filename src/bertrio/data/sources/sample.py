"""The built-in data source: English-like sentences from three small grammars, generated from a seed.

Word counts alone do not predict the labels. Sentiment depends on negation, degree words and the weight of clauses;
paraphrases differ in many words and near misses in few; similarity depends on the meaning of an edit and not on the
number of changed words. Questions and statements share their vocabulary, as those of real tasks do.

The only source of randomness is `random.Random.random`, whose sequence Python guarantees, and nothing depends on the
order of a set: a seed gives the same rows on every machine.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pandas as pd
import yaml

from bertrio.core.errors import UserError
from bertrio.core.tasks import TEXT_COLUMNS, Task
from bertrio.data.sources import SourceData, check_kind

if TYPE_CHECKING:
    from bertrio.config import DataParams

T = TypeVar("T")
Concept = tuple[str, ...]  # synonyms
SPLITS = ("test", "dev", "train")  # in order of generation: train_rows does not affect test and dev
SEED = 0
LABEL_NOISE = 0.04  # share of deliberately wrong labels, so that no task saturates
VOCABULARY = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
CONCEPTS: dict[str, tuple[Concept, ...]] = {
    name: tuple(tuple(words.split()) for words in concepts) for name, concepts in VOCABULARY["concepts"].items()
}
PEOPLE = CONCEPTS["people"]


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def _pick(rng: random.Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def _other(rng: random.Random, items: Sequence[T], *taken: T | None) -> T:
    """Pick one of `items` that is not in `taken`."""
    return _pick(rng, [item for item in items if item not in taken])


def _with_article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def _sentence(text: str, end: str) -> str:
    """Return `text` with single spaces, capital letters and `end`."""
    text = re.sub(r"\bi\b", "I", " ".join(text.split()))
    return text[0].upper() + text[1:] + end


class _Wording:
    """Choice of a synonym for each concept of a sentence.

    Args:
        rng: random generator.
        base: wording of the other sentence of the pair.
        keep: probability that a concept keeps its wording in `base`.
    """

    def __init__(self, rng: random.Random, base: _Wording | None = None, keep: float = 0.0) -> None:
        self._rng, self._keep = rng, keep
        self._known: dict[Concept, str] = dict(base._known) if base else {}

    def __call__(self, concept: Concept | None) -> str:
        if concept is None:
            return ""
        if concept not in self._known or not _chance(self._rng, self._keep):
            self._known[concept] = _pick(self._rng, concept)
        return self._known[concept]


# ---- sst: sentiment --------------------------------------------------------------------------------------------------

FILMS, ASPECTS, QUALITIES, DEGREES, JOINTS = VOCABULARY["sentiment"].values()
NEGATION_SHIFT = 2.25
CUTS = (-1.4, -0.4, 0.4, 1.4)  # between the five degrees; no sentence has exactly such a value


Opinion = tuple[float, str]  # a value, about -3 (hated) to 3 (loved), and a text


def _clause(rng: random.Random, subject: str) -> Opinion:
    """Make a statement about `subject`.

    A degree word scales an adjective's value, and a negation shifts the value instead of flipping it: "not brilliant"
    is slightly negative, "not good" more so (Taboada et al. 2011, "Lexicon-Based Methods for Sentiment Analysis").
    """
    negated = _chance(rng, 0.4)
    quality = _pick(rng, tuple(QUALITIES))
    degree = _pick(rng, (1.0, 1.5) if negated else (1.0, 1.5, 0.5))  # "not slightly dull" is no idiomatic phrase
    value = quality * degree
    phrase = f"{_pick(rng, DEGREES[degree])} {_pick(rng, QUALITIES[quality])}".strip()
    if negated:
        value -= NEGATION_SHIFT if value > 0 else -NEGATION_SHIFT
    if subject in FILMS:
        return value, f"this is {'not' if negated else ''} {_with_article(f'{phrase} {subject}')}"
    verb = _pick(rng, ("is not", "is never", "never feels") if negated else ("is", "feels", "seems"))
    return value, f"the {subject} {verb} {phrase}"


def _review(rng: random.Random) -> Opinion:
    """Make one or two statements. Of two contrasting ones, the main or the later one has more weight."""
    subject = _pick(rng, [*ASPECTS, *FILMS])
    first = _clause(rng, subject)
    if _chance(rng, 0.3):
        return first
    joint, second = _pick(rng, tuple(JOINTS)), _clause(rng, _other(rng, ASPECTS, subject))
    weight = JOINTS[joint]
    return weight * first[0] + (1 - weight) * second[0], joint.format(first[1], second[1])


def _sst_row(rng: random.Random) -> tuple[tuple[str, ...], float]:
    value, text = _review(rng)
    return (_sentence(text, "."),), float(sum(value > cut for cut in CUTS))


# ---- qqp: paraphrase -------------------------------------------------------------------------------------------------


class _Family(NamedTuple):
    """Questions with the same slots: a near miss can replace any intent by another."""

    intents: dict[str, list[str]]  # to templates of the question
    slots: dict[str, str]  # to the name of their concepts; `first` and `second` have the same
    ordered: Sequence[str] = ()  # intents that depend on the order of `first` and `second`
    negatable: bool = False


DEEDS, RELATIONS, CHOICES = (_Family(**family) for family in VOCABULARY["questions"].values())
FAMILIES = (DEEDS, DEEDS, DEEDS, RELATIONS, CHOICES)  # in proportion to the variety of their questions


class _Question(NamedTuple):
    family: _Family
    intent: str
    slots: dict[str, Concept]
    negated: bool

    def swapped(self) -> _Question:
        return self._replace(slots={**self.slots, "first": self.slots["second"], "second": self.slots["first"]})

    def text(self, template: str, word: _Wording) -> str:
        chosen = {slot: word(concept) for slot, concept in self.slots.items()}
        do, _, done = chosen.get("verb", "").partition("/")
        thing = f"{chosen.get('adjective', '')} {chosen['first']}"
        words = {**chosen, "do": do, "done": done, "not": "not" if self.negated else "", "thing": thing}
        return _sentence(template.format(**words), "?")


def _question(rng: random.Random) -> _Question:
    family = _pick(rng, FAMILIES)
    slots = _filled(rng, family.slots)
    return _Question(family, _pick(rng, tuple(family.intents)), slots, family.negatable and _chance(rng, 0.3))


def _near_miss(rng: random.Random, question: _Question) -> _Question:
    """Make a question that shares most words with `question` but has another meaning."""
    family = question.family
    changes = [*family.slots, "intent"]
    changes += ["negation"] if family.negatable else []
    changes += ["order", "order"] if question.intent in family.ordered else []
    change = _pick(rng, changes)
    if change == "intent":
        return question._replace(intent=_other(rng, tuple(family.intents), question.intent))
    if change == "negation":
        return question._replace(negated=not question.negated)
    if change == "order":
        return question.swapped()
    concept = _other(rng, CONCEPTS[family.slots[change]], *question.slots.values())
    return question._replace(slots={**question.slots, change: concept})


def _qqp_row(rng: random.Random) -> tuple[tuple[str, ...], float]:
    question, label = _question(rng), float(_chance(rng, 0.45))
    if label:
        symmetric = "second" in question.slots and question.intent not in question.family.ordered
        other = question.swapped() if symmetric and _chance(rng, 0.5) else question
    else:
        other = _question(rng) if _chance(rng, 0.15) else _near_miss(rng, question)
    word = _Wording(rng)
    template = _pick(rng, question.family.intents[question.intent])
    same_shape = (question.family, question.intent) == (other.family, other.intent) and _chance(rng, 0.3)
    other_template = template if same_shape else _pick(rng, other.family.intents[other.intent])
    text = question.text(template, word)
    return (text, other.text(other_template, _Wording(rng, word, keep=_pick(rng, (0.0, 0.5))))), label


# ---- sts: similarity -------------------------------------------------------------------------------------------------


# Keys: agent, verb, detail (adjective or count of the patients), patient, place, and `negated`. Detail and place may
# be None.
Event = dict[str, Any]
COSTS = {"agent": 1.2, "verb": 1.5, "patient": 1.2, "detail": 0.8, "place": 0.8}
NEGATION_COST = 2.0
SWAP_COST = 1.8
DROP = 0.6  # factor on the cost if a detail or place is left out instead of replaced
OPTIONAL = ("detail", "place")


def similarity(a: Event, b: Event) -> float:
    """Return 5 minus the costs of all differences, at least 0, with one decimal."""
    costs = {slot: cost for slot, cost in COSTS.items() if a[slot] != b[slot]}
    for slot in OPTIONAL:
        if slot in costs and None in (a[slot], b[slot]):
            costs[slot] *= DROP
    if (a["agent"], a["patient"]) == (b["patient"], b["agent"]):
        costs["agent"], costs["patient"] = SWAP_COST / 2, SWAP_COST / 2
    return round(max(0.0, 5 - sum(costs.values()) - NEGATION_COST * (a["negated"] != b["negated"])), 1)


def _event_slots(about_people: bool) -> dict[str, str]:
    """Return the name of the concepts of each slot of an event."""
    verb, detail, patient = (
        ("people_verbs", "counts", "people") if about_people else ("thing_verbs", "adjectives", "things")
    )
    return {"agent": "people", "verb": verb, "detail": detail, "patient": patient, "place": "places"}


def _filled(rng: random.Random, slots: Mapping[str, str]) -> dict[str, Concept]:
    """Fill each slot with one of its concepts, no two with the same."""
    filled: dict[str, Concept] = {}
    for slot, name in slots.items():
        filled[slot] = _other(rng, CONCEPTS[name], *filled.values())
    return filled


def _event(rng: random.Random) -> Event:
    return {**_filled(rng, _event_slots(about_people=_chance(rng, 0.4))), "negated": False}


def _edited(rng: random.Random, event: Event) -> Event:
    """Return `event` with one change."""
    agent, patient = event["agent"], event["patient"]
    slots = _event_slots(patient in PEOPLE)
    change = _pick(rng, (*slots, "negated", *(["swap", "swap"] if patient in PEOPLE else [])))
    if change == "swap":
        return {**event, "agent": patient, "patient": agent}
    if change == "negated":
        return {**event, "negated": not event["negated"]}
    dropped = change in OPTIONAL and _chance(rng, 0.4)
    return {**event, change: None if dropped else _other(rng, CONCEPTS[slots[change]], agent, patient, event[change])}


def _statement(rng: random.Random, event: Event, word: _Wording, plain: float) -> str:
    """Put `event` into words: with probability `plain` in the usual order, else passive or with the place first."""
    agent, patient = word(event["agent"]), f"{word(event['detail'])} {word(event['patient'])}"
    base, _, past = word(event["verb"]).partition("/")
    place = f"near {word(event['place'])}" if event["place"] else ""
    negated = event["negated"]
    active = f"{agent} {f'did not {base}' if negated else past} {patient}"
    if _chance(rng, plain):
        return _sentence(f"{active} {place}", "")
    if place and _chance(rng, 0.4):
        return _sentence(f"{place}, {active}", "")
    return _sentence(f"{patient} {place} were {'not' if negated else ''} {past} by {agent}", "")


def _sts_row(rng: random.Random) -> tuple[tuple[str, ...], float]:
    a = b = _event(rng)
    edits = _pick(rng, (0, 0, 1, 1, 1, 2, 2, 3, 4, None))
    if edits is None:
        b = _event(rng)
    for _ in range(edits or 0):
        b = _edited(rng, b)
    word = _Wording(rng)
    text = _statement(rng, a, word, plain=0.9)
    word_b = _Wording(rng, word, keep=_pick(rng, (0.0, 0.0, 0.5, 0.9)))
    return (text, _statement(rng, b, word_b, plain=0.7)), similarity(a, b)


# ---- the source ------------------------------------------------------------------------------------------------------


GRAMMARS = {"sst": _sst_row, "qqp": _qqp_row, "sts": _sts_row}  # each makes the texts of a row and their true label
KINDS = {"sst": "single", "qqp": "pair", "sts": "pair"}


def _wrong_label(rng: random.Random, task: str, label: float) -> float:
    """Return a wrong label: a neighbouring degree, the other class, or a random score."""
    if task == "sst":
        return _pick(rng, [near for near in (label - 1, label + 1) if 0 <= near <= 4])
    return 1 - label if task == "qqp" else round(5 * rng.random(), 1)


def generate(
    task: str, split: str, rows: int, seed: int, label_noise: float, taken: frozenset[str] = frozenset()
) -> pd.DataFrame:
    """Generate one split of one task.

    Args:
        task: `sst` (label 0 to 4), `qqp` (0 or 1) or `sts` (0.0 to 5.0, one decimal).
        split: name of the split, part of the seed and of the ids (`sst-train-00017`).
        rows: number of rows. No text, and no pair in either order, occurs twice.
        seed: seed of the rows.
        label_noise: share of deliberately wrong labels, 0 to 1, see `_wrong_label`.
        taken: texts of other splits, which are not used.

    Returns:
        Columns `id`, `text` or `text_a` and `text_b`, `label`.

    Raises:
        UserError: if the grammar has too few sentences for that many rows.
    """
    make_row, rng = GRAMMARS[task], random.Random(f"{seed}/{task}/{split}")
    made: dict[tuple[str, ...], list[object]] = {}
    for _ in range(20 * rows + 1000):
        if len(made) == rows:
            break
        texts, label = make_row(rng)
        noisy = _wrong_label(rng, task, label) if _chance(rng, label_noise) else label
        key = tuple(sorted(texts))
        if key not in made and len(set(texts)) == len(texts) and taken.isdisjoint(texts):
            made[key] = [f"{task}-{split}-{len(made):05d}", *texts, noisy]
    if len(made) < rows:
        raise UserError(
            f"data.sample.{split}_rows: found {rows}, but the grammar of {task} has too few different sentences; "
            f"ask for {len(made)} or fewer"
        )
    return pd.DataFrame(list(made.values()), columns=["id", *TEXT_COLUMNS[KINDS[task]], "label"])


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Generate labelled train, dev and test splits of each task; no text is in two splits.

    Raises:
        UserError: if this source has no such task, or its kind or target differs from the params.
    """
    return SourceData({name: _splits(params, task) for name, task in tasks.items()}, facts={"seed": SEED})


def _splits(params: DataParams, task: Task) -> dict[str, pd.DataFrame]:
    check_kind(task, KINDS, "sample")
    sample, tables, taken = params.sample, {}, frozenset[str]()
    for split in SPLITS:
        rows = getattr(sample, f"{split}_rows")
        tables[split] = generate(task.name, split, rows, SEED, LABEL_NOISE, taken)
        taken = taken.union(*(tables[split][column] for column in task.text_columns))
    for label in sorted(pd.concat(tables.values())["label"].unique()):
        problem = task.target.label_problem(label)
        if problem:
            raise UserError(f"tasks.{task.name}.target: source sample makes labels such as {label:g}; here, {problem}")
    return tables


def load_corpus(params: DataParams, name: str, rows: int, skipped: Counter[str]) -> Iterator[str]:
    """Generate unlabelled texts from the same grammars: reviews of several sentences (imdb), pairs of questions or
    statements (multinli), pairs of statements (sick).
    """
    rng = random.Random(f"{SEED}/{name}")
    for _ in range(rows):
        if name == "imdb":
            yield " ".join(_sst_row(rng)[0][0] for _ in range(4 + int(5 * rng.random())))
        else:
            make_row = _qqp_row if name == "multinli" and _chance(rng, 0.5) else _sts_row
            yield " ".join(make_row(rng)[0])
