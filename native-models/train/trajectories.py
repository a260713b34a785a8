"""Trajectories that `kvfold collect` wrote (JSON Lines, version 2; of version 1 what is read here is the same): prompts as tokens, with the completions that are learned from each."""
import glob
import json
import os
from typing import NamedTuple

import numpy as np

from . import format as fmt
from .found import Found, pairs
from .grow import ORDINALS
from .tokenizer import Tokenizer
from .words import SPACE

MOST_GAPS = 9000  # positions left out of a text, so that a short one stands at the places of a long one
COPIED = 25  # tokens: so long an answer repeats a text
ID = 3  # tokens
LOOKS = 80  # tokens of a text that is repeated of which it is said where they are
AGAIN = 0.4  # how often another match is asked for
THINNED, MOST_THINNED = 0.5, 0.9  # how often some of the other texts are left out, and up to which share of them
RARER = {"similar": 0.3}  # how much less often long ones are drawn, as a power of their length
NEAR, FAR = 3, 8  # tokens before by which it is told where a text goes on: few, and as many as tell it mostly
FORK, FAR_FORK = 1.5, 3.0  # what a token of it counts that another text would have otherwise
DECIDED = 4.0  # how much such a token counts


def _forks(ids, a, b, begin, seen):
    """Where the answer could go on in two ways by the tokens `seen` before, for what was shown has both; of a text that is repeated from `begin`
    on, by its own."""
    after, text = {}, Found(ids[:a])
    for n in range(seen, a):
        after.setdefault(tuple(ids[n - seen : n]), set()).add(ids[n])
    found = {n for n in range(a + 1, b) if len(after.get(tuple(ids[n - seen : n]), ())) > 1}
    for n in range(begin + 1, min(b, begin + seen)):
        own = ids[begin:n]
        if len({ids[place + len(own)] for place in text.all(own, a)}) > 1:
            found.add(n)
    return sorted(found)


class Record(NamedTuple):
    ids: np.ndarray  # 16 bits
    learned: list  # half-open stretches


class Trajectories:
    """Those of one kind, by the length that was asked for."""

    def __init__(self, folder, kind, vocabulary, rarer=None):
        self.turn, self.user, self.announced, self.question = (vocabulary.id[text] for text in (fmt.START, "user\n", *fmt.TEXTS[:2]))
        self.codes = [vocabulary.id[text] for text in fmt.TEXTS[-2:]]
        self.named = [vocabulary.id[text] for text in (fmt.SEARCH_OPEN, "The" + fmt.ELDEST, fmt.BOX)]
        self.who = vocabulary.id["The" + fmt.ELDEST]
        self.closes = [vocabulary.id[text] for text in (*fmt.SEARCH_CLOSE, fmt.BOX, fmt.BOXED)]
        self.detail, self.repeat, self.bracket = (vocabulary.id[text] for text in (fmt.DETAIL_OPEN, fmt.REPEAT, SPACE + "("))
        self.ordinals = {vocabulary.id[str(n + 1)]: vocabulary.id[SPACE + word] for n, word in enumerate(ORDINALS) if SPACE + word in vocabulary.id}
        self.rarer, self.similar = rarer or RARER.get(kind, 0.7), kind == "similar"
        self.streams, self.cut = kind == "orders", vocabulary.id[fmt.CUT_OPEN]
        self.values, self.folds = list(vocabulary.parts), [vocabulary.id[text] for text in (fmt.FOLD_OPEN, fmt.FOLD_NEXT, fmt.RESTORE_OPEN)]
        self.listed = [vocabulary.id[text] for text in (fmt.NEXT, fmt.LAST)]
        self.tokenizer, self.by_length = Tokenizer(vocabulary), {}
        for path in sorted(glob.glob(os.path.join(folder, kind + ".*jsonl"))):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    row = json.loads(line)
                    if row["version"] not in (1, 2):
                        raise SystemExit("%s is of version %s, and this reads versions 1 and 2" % (path, row["version"]))
                    made = Record(np.array(row["tokens"], np.uint16), row["loss"])
                    self.by_length.setdefault(row["cell"].get("length", 1), []).append(made)
        if not self.by_length:
            raise SystemExit("there are no trajectories %s in %s; run.sh collects them" % (kind, folder))

    def renamed(self, record, rng, word):
        """The same with other names: every first name and every family name that is searched for becomes a word made by `word`."""
        v, ids = self.tokenizer, record.ids
        known = {v.vocabulary.id[name] for name in v.vocabulary.words.given}
        for n in np.flatnonzero(np.isin(ids, self.named)) + 1:
            end = n + int(np.flatnonzero(np.isin(ids[n:], self.closes))[0])
            known |= {int(i) for i in ids[n:end] if v.vocabulary.tokens[i].text[0].isupper()}
        other, made = {}, [ids[:0]]
        marks = [0, *(mark for stretch in record.learned for mark in stretch), len(ids)]
        bounds = [0]
        for a, b in zip(marks, marks[1:]):
            fresh, kept = [], a
            for n in range(a, b):
                if int(ids[n]) not in known:
                    continue
                after = v.vocabulary.tokens[ids[n + 1]].text if n + 1 < b else " "
                if after[0].isalpha():  # the beginning of a longer word
                    continue
                if int(ids[n]) not in other:
                    other[int(ids[n])] = v.encode(word(rng).capitalize())
                fresh += [*ids[kept:n], *other[int(ids[n])]]
                kept = n + 1
            fresh += [*ids[kept:b]]
            made.append(np.array(fresh, np.uint16))
            bounds.append(bounds[-1] + len(fresh))
        return Record(np.concatenate(made), [list(pair) for pair in zip(bounds[1:-1:2], bounds[2:-1:2])])

    def draw(self, rng, longest, short, word=None):
        """`word`: makes the names that stand for those of the record. One of at most `longest`, short ones more often than long ones, as (ids, positions, learned, looks). A share `short` of all is
        without the text that was asked about; positions are left out in its place."""
        lengths = [n for n in sorted(self.by_length) if n <= longest]
        length = rng.choices(lengths, [n**-self.rarer for n in lengths])[0]
        record = rng.choice(self.by_length[length])
        if self.streams:
            return self._stream(record)
        if word:
            record = self.renamed(record, rng, word)
        ids, code = record.ids.astype(np.int64), self._code(record)
        learned = np.zeros(len(ids), np.float32)
        far = []
        for a, b in record.learned:
            learned[a:b] = 0.3
            copied = self.similar and b - a >= COPIED
            learned[a] = DECIDED if copied else 2  # a call or an answer; the first character of what stands before a text
            if copied:
                near, far = (_forks(record.ids.tolist(), a, b, a + len(code), seen) for seen in (NEAR, FAR))
                learned[a + 1 : b] = 0.15
                learned[near], learned[far] = FORK, FAR_FORK
                learned[a + 1 : a + len(code)] = 1
                learned[[a + len(code), b - 1]] = DECIDED
        # What to look for, which match, who it is: the first token of a name, of an id. What closes a name opens what follows.
        learned[(learned > 0) & np.isin(ids, self.closes)] = 1
        decided = np.flatnonzero((learned[1:] > 0) & np.isin(ids[:-1], [*self.named, self.detail])) + 1
        learned[decided] = DECIDED
        start, end = self._text(ids, record.learned[0][0])
        if self.detail in ids and rng.random() < AGAIN:
            ids, learned, looks = self._asked_again(ids, learned, rng)
        else:
            looks = self._looks(record, code, far, rng)
        positions = np.arange(len(ids))
        if rng.random() < short:
            keep = np.r_[:start, end : len(ids)]
            positions[end:] += rng.randrange(MOST_GAPS) - rng.randrange(end - start + 1)
            return self._only(keep, ids, positions, learned, looks)
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 4)):
                positions[rng.randrange(start, end) :] += rng.randrange(MOST_GAPS // 4)
        if self.similar and rng.random() < THINNED:
            share = rng.random() * MOST_THINNED
            asked = start + np.flatnonzero(ids[start:end] == self.turn)[::2]  # a user, whom an assistant answers
            bounds = [start, *asked[1:], end]
            keep = [np.arange(a, b) for a, b in zip(bounds, bounds[1:]) if rng.random() > share]
            return self._only(np.concatenate([np.arange(start), *keep, np.arange(end, len(ids))]), ids, positions, learned, looks)
        return ids, positions, learned, looks

    @staticmethod
    def _only(keep, ids, positions, learned, looks):
        """The tokens `keep`, at their positions."""
        now = np.full(len(ids), -1)
        now[keep] = np.arange(len(keep))
        looks = now[looks]
        return ids[keep], positions[keep], learned[keep], looks[(looks >= 0).all(1)]

    def _looks(self, record, code, forks, rng):
        """Tokens that are learned and where they stand before: a text that is repeated (most of all where it forks), the id of a match, a name
        that a search is for or that is the answer. What closes a name follows from what opened it."""
        *copied, first, chosen = self._places(record) or [None, None]
        copied = sorted(rng.sample(copied, len(copied)), key=lambda pair: pair[0] + 1 not in forks)[:LOOKS]
        found = [(asking + 1, place) for asking, place in [*copied, *filter(None, [first, chosen])]]
        answer = record.learned[-1][0]
        found += [(answer + n, place) for n, place in enumerate(code)]
        text, closes = Found(record.ids), np.isin(record.ids, self.closes)
        question = int(np.flatnonzero(record.ids == self.question)[-1]) if self.question in record.ids else None
        for n in np.flatnonzero(np.isin(record.ids, self.named)) + 1:
            if any(a <= n < b for a, b in record.learned):
                end = n + int(np.flatnonzero(closes[n:])[0])
                place = question + 1 if record.ids[n - 1] == self.who else text.last(record.ids[n:end], n - 1)
                found += [(n + i, place + i) for i in range(end - n) if place >= 0]
                found.append((end, n - 1))
        return pairs(found)

    def _code(self, record):
        """Where in the question the code stands that an answer begins with which repeats a text."""
        ids, (begin, end) = record.ids.tolist(), record.learned[-1]
        if not self.similar or end - begin < COPIED:
            return []
        first, last = (max(np.flatnonzero(record.ids[:begin] == mark)) for mark in self.codes)
        if ids[first + 1 : last] != ids[begin : begin + last - first - 1]:
            raise ValueError("the code of an answer is not that of its question")
        return range(first + 1, last)

    def _stream(self, record):
        """Of a stream what is done: neither its values nor the number of fragments is learned from it."""
        ids = record.ids.astype(np.int64)
        learned = np.zeros(len(ids), np.float32)
        for a, b in record.learned:
            learned[a:b] = 0.3
            learned[a] = DECIDED
        after = np.r_[False, np.isin(ids[:-1], self.folds)]
        learned[after & (learned > 0)] = DECIDED / 2
        learned[np.isin(ids, self.values) | np.r_[False, ids[:-1] == self.cut]] = 0
        text, looks = Found(ids), []
        for n in np.flatnonzero(after & (learned > 0)):
            place = text.last(ids[n : n + ID], n)
            if place >= 0:
                more = ids[place + ID] in self.listed  # whether another id follows
                looks += [(n + i, place + i) for i in range(ID + more)]
                learned[n + 1 : n + ID + more] = 1
        return ids, np.arange(len(ids)), learned, pairs(looks)

    def _matches(self, ids, until):
        """Where the ids of counted matches begin: (place, number)."""
        return [(n, ids[n - 2]) for n in range(2, until) if ids[n - 1] == self.bracket and ids[n - 2] in self.ordinals]

    def _asked_again(self, ids, learned, rng):
        """Another match is asked for; it ends where its detail is called for."""
        detail = int(np.flatnonzero(ids == self.detail)[0])
        asked = int(np.flatnonzero(ids[:detail] == self.repeat)[-1]) + 1
        place, number = rng.choice(self._matches(ids.tolist(), detail))
        ids, end = ids.copy(), detail + 1 + ID + 2
        ids[asked] = self.ordinals[number]
        ids[detail + 1 : detail + 1 + ID] = ids[place : place + ID]
        return ids[:end], learned[:end], np.arange(ID)[:, None] + [[detail + 1, place]]

    def passages(self, count):
        """Of some: the token ids, and the places where the text that is repeated and the id that is called for have to be looked up, each
        with the token before. The last one is the id's."""
        some = [r for length in sorted(self.by_length) for r in self.by_length[length][:count]]
        return [(r.ids.astype(np.int64), places) for r, places in ((r, self._places(r)) for r in some) if places]

    def _places(self, record):
        ids, (begin, end) = record.ids.tolist(), record.learned[-1]
        if self.detail not in ids:
            return None
        detail = ids.index(self.detail)
        found = [n for n, _ in self._matches(ids, detail) if ids[n : n + ID] == ids[detail + 1 : detail + 1 + ID]]
        size = end - 1 - begin
        # The text ends both its detail and the answer, which begins with a few characters of its own.
        close = max(n for n in range(begin) if ids[n] == ids[end - 1] and n < begin - 1)
        same = next((n for n in range(size) if ids[close - 1 - n] != ids[end - 2 - n]), size)
        return [(end - 2 - n, close - n) for n in range(same)] + [(detail, found[0])] if found and same > ID else None

    def _text(self, ids, first):
        """Where the text stands that the question is about: after the sentence that announces it, or after the system message."""
        asked = np.flatnonzero(ids[:first] == self.question)
        if len(asked):
            return int(np.flatnonzero(ids[:first] == self.announced)[0]) + 1, int(asked[0])
        turns = np.flatnonzero(ids[:first] == self.turn)
        users = turns[ids[turns + 1] == self.user]
        system = turns[0] != users[0]
        return int(turns[1 if system else 0]), int(users[-1])
