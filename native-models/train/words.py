"""The vocabulary of the built-in model: which texts are tokens, of which kind, with which score.

Three kinds of text get a token of their own:

* template and prompt pieces, raw text matched longest first (USER_DEFINED);
* words of the interference task, built by SentencePiece merges (NORMAL), because llama.cpp scans a text once for
  every USER_DEFINED token and six thousand of those would make a long prompt slow;
* words of the texts that are read (`reading.json`), built in the same way; those with a capital have no space before them, so that
  a name is the same token wherever it stands;
* frequent pieces of such words, so that a word which is none of them is a few tokens;
* single characters, pairs of hexadecimal digits and the 256 bytes, so that any text round-trips.

A value is two words, the second with its punctuation (" gold", "harbor;" in the stream, "harbor." in the answer), and a key carries its
colon (" river:"), so that one update is three tokens. The two forms of a second word share one row of the embedding while training.
"""
import json
import os
from typing import NamedTuple

from . import format as fmt

READING_PATH = os.path.join(os.path.dirname(__file__), "reading.json")
WORDS_PATH = os.path.join(os.path.dirname(__file__), "..", "..", "src", "lab", "words.json")
SPACE = "\u2581"  # how SentencePiece writes a space

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # llama.cpp's token types


_GRAND = "grand"


class Token(NamedTuple):
    text: str
    score: float
    kind: int


class Words(NamedTuple):
    keys: list
    first: list
    second: list
    spaced: list  # words of texts, with the space before them
    capital: list  # and those without
    given: list  # those of them that a name begins with

    @property
    def values(self):
        return [f + s for f in self.first for s in self.second]


def load_words():
    with open(WORDS_PATH, encoding="utf-8") as f, open(READING_PATH, encoding="utf-8") as g:
        return Words(**json.load(f), **json.load(g))


def prefixes(word, shortest):
    return [word[:n] for n in range(shortest, len(word) + 1)]


PIECES = {2: 230, 3: 340, 4: 130}  # letters: how many


def pieces(words):
    """The most frequent runs of letters in words, each with all that it begins with. None could be part of an id."""
    counts = {}
    for word in {w.lower() for w in [*words.keys, *words.first, *words.second, *words.spaced, *words.capital]}:
        for size in PIECES:
            for at in range(len(word) - size + 1):
                counts[word[at : at + size]] = counts.get(word[at : at + size], 0) + 1
    chosen = set()
    for size, count in PIECES.items():
        fit = [p for p in counts if len(p) == size and (size == 2 or p[:-1] in chosen) and p.isalpha() and not set(p) <= set("abcdefs")]
        chosen.update(sorted(fit, key=lambda p: (-counts[p], p))[:count])
    return sorted(chosen)


class Vocabulary:
    """All tokens in id order. Ids: unknown, the two control tokens, bytes, pieces, then NORMAL tokens, values last."""

    def __init__(self, words, reading=True):
        """`reading`: whether it has the tokens of texts that are read, which the first part of the training does without."""
        self.words = words if reading else words._replace(spaced=[], capital=[], given=[])
        self.tokens = [Token("<unk>", 0.0, UNKNOWN), Token(fmt.START, 0.0, CONTROL), Token(fmt.END, 0.0, CONTROL)]
        self.tokens += [Token("<0x%02X>" % b, 0.0, BYTE) for b in range(256)]
        self.tokens += [Token(p, 0.0, USER_DEFINED) for p in fmt.PIECES + (fmt.READING if reading else [])]
        self._normal()
        self.id = {t.text: i for i, t in enumerate(self.tokens)}
        if len(self.id) != len(self.tokens):
            raise ValueError("a token text occurs twice")
        self.start, self.end = self.id[fmt.START], self.id[fmt.END]
        self.base = len(self.tokens) - 2 * len(words.second)  # first row of "harbor;" and the like; "harbor." follows as a block
        self.parts = {self.id[SPACE + w] for w in words.first} | set(range(self.base, len(self.tokens)))  # what values are made of

    def _normal(self):
        """Scores decide the merge order: longer prefixes first, and everything that starts with a space before the rest."""
        chars = [SPACE, "\n"] + [chr(c) for c in range(33, 127)]
        score = {c: 0.0 for c in chars}
        digits = "0123456789abcdef"
        for pair in [a + b for a in digits + "s" for b in digits]:
            score[pair] = 2.0
        for word in self.words.second:
            for end in (";", "."):
                for p in prefixes(word + end, 2):
                    score[p] = float(len(p))
        score["," + SPACE] = 1.0  # lowest: only where no word follows, as between two ids
        if self.words.spaced:
            score[SPACE + "("] = 1.0
        for word in self.words.capital:
            for p in prefixes(word, 2):
                score[p] = 50.0 + len(p)
        # "grandmother" would get in the way of the value "grandmeadow": its end is a word of its own.
        ends = [w[len(_GRAND) :] for w in self.words.spaced if w.startswith(_GRAND)]
        for p in (p for end in ends for p in prefixes(end, 2)):
            score.setdefault(p, float(len(p)))
        spaced = [w for w in self.words.spaced if not w.startswith(_GRAND)]
        for word in self.words.first + [k + ":" for k in self.words.keys] + spaced:
            for p in prefixes(SPACE + word, 2):
                score[p] = 100.0 + len(p)
        if self.words.spaced:
            for p in pieces(self.words):
                score.setdefault(p, float(len(p)))
        known = {t.text for t in self.tokens}
        last = [w + end for end in (";", ".") for w in self.words.second]
        known.update(last)
        self.tokens += [Token(t, s, NORMAL) for t, s in score.items() if t not in known]
        self.tokens += [Token(t, score[t], NORMAL) for t in last]

    def __len__(self):
        return len(self.tokens)
