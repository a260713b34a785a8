"""The vocabulary of the built-in model: which texts are tokens, of which kind, with which score.

Three kinds of text get a token of their own:

* template and prompt pieces, raw text matched longest first (USER_DEFINED);
* words of the interference task, built by SentencePiece merges (NORMAL), because llama.cpp scans a text once for
  every USER_DEFINED token and six thousand of those would make a long prompt slow;
* single characters, pairs of hexadecimal digits and the 256 bytes, so that any text round-trips.

A value is two words, the second with its punctuation (" gold", "harbor;" in the stream, "harbor." in the answer), and a key carries its
colon (" river:"), so that one update is three tokens. The two forms of a second word share one row of the embedding while training.
"""
import json
import os
from typing import NamedTuple

from . import format as fmt

WORDS_PATH = os.path.join(os.path.dirname(__file__), "..", "..", "src", "eval", "words.json")
SPACE = "\u2581"  # how SentencePiece writes a space

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # llama.cpp's token types


class Token(NamedTuple):
    text: str
    score: float
    kind: int


class Words(NamedTuple):
    keys: list
    first: list
    second: list

    @property
    def values(self):
        return [f + s for f in self.first for s in self.second]


def load_words(path=WORDS_PATH):
    with open(path, encoding="utf-8") as f:
        data = json.load(f)
    return Words(data["keys"], data["first"], data["second"])


def prefixes(word, shortest):
    return [word[:n] for n in range(shortest, len(word) + 1)]


class Vocabulary:
    """All tokens in id order. Ids: unknown, the two control tokens, bytes, pieces, then NORMAL tokens, values last."""

    def __init__(self, words):
        self.words = words
        self.tokens = [Token("<unk>", 0.0, UNKNOWN), Token(fmt.START, 0.0, CONTROL), Token(fmt.END, 0.0, CONTROL)]
        self.tokens += [Token("<0x%02X>" % b, 0.0, BYTE) for b in range(256)]
        self.tokens += [Token(p, 0.0, USER_DEFINED) for p in fmt.PIECES]
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
        for word in self.words.first + [k + ":" for k in self.words.keys]:
            for p in prefixes(SPACE + word, 2):
                score[p] = 100.0 + len(p)
        known = {t.text for t in self.tokens}
        last = [w + end for end in (";", ".") for w in self.words.second]
        known.update(last)
        self.tokens += [Token(t, s, NORMAL) for t, s in score.items() if t not in known]
        self.tokens += [Token(t, score[t], NORMAL) for t in last]

    def __len__(self):
        return len(self.tokens)
