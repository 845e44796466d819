"""Words for men and words for women, and texts in which they are swapped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

GENDERED = (
    "he-she himself-herself man-woman men-women boy-girl boys-girls father-mother fathers-mothers dad-mom son-daughter "
    "sons-daughters brother-sister brothers-sisters husband-wife husbands-wives uncle-aunt grandfather-grandmother "
    "nephew-niece actor-actress actors-actresses gentleman-lady gentlemen-ladies male-female males-females"
)
FOR_MEN = dict(pair.split("-") for pair in GENDERED.split()) | {"him": "her", "his": "her"}
FOR_WOMEN = dict(pair.split("-")[::-1] for pair in GENDERED.split()) | {"hers": "his"}
COUNTERPARTS = FOR_MEN | FOR_WOMEN  # "her" is ambiguous, see `gender_swapped`
AFTER_OBJECT = (  # before one of these words "her" becomes "him", else "his"
    "a about after against and as at because before but by for from if in into is of off on or out over so than that "
    "the through to until up was when while who with"
)


def gender_swapped(text: str) -> str:
    """Swap words for men and words for women: "he" and "she", "actress" and "actor".

    The word after "her" decides whether it becomes "him" or "his".
    """

    def other(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word != "her":
            return COUNTERPARTS[word]
        following = re.match(r" (\w+)", match.string[match.end() :])
        return "his" if following and following[1].lower() not in AFTER_OBJECT.split() else "him"

    return replace_words(text, [*COUNTERPARTS, "her"], other)


def towards_women(texts: Sequence[str]) -> int:
    """Return 1 if `gender_swapped` makes most gendered words words for women, -1 for men, 0 if they are as many."""
    words = [word for text in texts for word in re.findall(r"\w+", text.lower())]
    men = [word in FOR_MEN for word in words if word in COUNTERPARTS or word == "her"]
    return (2 * sum(men) > len(men)) - (2 * sum(men) < len(men))


def replace_words(text: str, words: Iterable[str], other: Callable[[re.Match[str]], str]) -> str:
    """Replace each of `words` by the result of `other`, with the same capitalization."""

    def cased(match: re.Match[str]) -> str:
        if not match[0].isascii():  # to IGNORECASE, \u0131 and \u0130 are an i, and \u017f is an s
            return match[0]
        word = other(match)
        if match[0].isupper() and len(match[0]) > 1:
            return word.upper()
        return word[0].upper() + word[1:] if match[0][0].isupper() else word

    return re.sub(rf"\b(?:{'|'.join(words)})\b", cased, text, flags=re.IGNORECASE)
