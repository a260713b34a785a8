"""Samples: interference streams, plain prompts, tool transcripts before and after folding, and two small drills.

A sample is (ids, positions, weights): `weights[i] > 0` where token i belongs to a completion and is learned. Every
kind is built from the same text functions, so nothing is trained that the runtime does not show; only positions are
sometimes left out, in plain prompts and tool transcripts alike, to meet late places without long prompts.
"""
import random
import re
from typing import NamedTuple

import numpy as np

from . import format as fmt
from .cuts import border, cut
from .format import Message


TOKENS_PER_UPDATE = 2
MOST_GAPS = 6200  # positions: with those of the stream itself, as long as 46 keys with 68 updates each


class Sample(NamedTuple):
    kind: str  # "plain", "cut", "folded", "ids", "noise"
    ids: np.ndarray
    positions: np.ndarray
    weights: np.ndarray


class Stream(NamedTuple):
    """`pairs`: (key, value) in order; `order`: the keys as listed; `values`: key -> its values, oldest first."""

    order: list
    pairs: list
    values: dict

    @property
    def last(self):
        return {k: v[-1] for k, v in self.values.items()}


def make_stream(words, rng, keys, n):
    """`n` values for each of `keys` keys, all distinct, shuffled so that neighbours never share a key (when n > 1, keys > 1)."""
    order = rng.sample(words.keys, keys)
    seq = [k for k in range(keys) for _ in range(n)]
    rng.shuffle(seq)
    if keys > 1:
        _separate(seq, rng)
    pool = rng.sample(words.values, keys * n)
    pairs = [(order[k], v) for k, v in zip(seq, pool)]
    values = {}
    for k, v in pairs:
        values.setdefault(k, []).append(v)
    asked = order[:]
    rng.shuffle(asked)
    return Stream(asked, pairs, values)


def _separate(seq, rng):
    """Swaps elements until no two neighbours are equal; starts over where the multiset is too tight for that."""
    size = len(seq)

    def clash(i):
        return (i > 0 and seq[i] == seq[i - 1]) or (i + 1 < size and seq[i] == seq[i + 1])

    for _ in range(50):
        bad = [i for i in range(1, size) if seq[i] == seq[i - 1]]
        if not bad:
            return
        for i in bad:
            for _ in range(40):
                j = rng.randrange(size)
                seq[i], seq[j] = seq[j], seq[i]
                if not clash(i) and not clash(j):
                    break
                seq[i], seq[j] = seq[j], seq[i]
        if any(seq[i] == seq[i - 1] for i in range(1, size)) and rng.random() < 0.2:
            rng.shuffle(seq)


def new_ids(rng, count):
    return ["f%05x" % x for x in rng.sample(range(1 << 20), count)]


def folded_user(text, pieces, idents, fold):
    """The user message as shown when the first `fold` fragments are folded."""
    first, end = pieces[0][0], pieces[fold - 1][1]
    marks = "".join(fmt.fold_marker(i, b - a) for i, (a, b) in zip(idents, pieces[:fold]))
    return text[:first] + marks + text[end:]


class Maker:
    """Draws samples of every kind. `completion` weights: values, keys and ids count in full, boilerplate less."""

    def __init__(self, words, tokenizer, seed):
        self.words, self.tokenizer, self.rng = words, tokenizer, random.Random(seed)
        self.vocabulary = tokenizer.vocabulary
        heavy = {" " + k for k in words.keys} | {"\n", fmt.END}  # the last two: go on or stop
        self._weight = np.full(len(self.vocabulary), 0.25, np.float32)
        for i, t in enumerate(self.vocabulary.tokens):
            if i >= self.vocabulary.base or t.text.replace("\u2581", " ") in heavy or (len(t.text) == 2 and t.kind == 1):
                self._weight[i] = 1.0
        for digit in "123456789":  # occur in completions only as the number of fragments: one token a sample, and hard to learn
            self._weight[self.vocabulary.id[digit]] = 8.0

    def _gaps(self):
        """Positions to leave out of a stream, so that a prompt of few updates is as long as one of many: none in half of all samples."""
        return 0 if self.rng.random() < 0.5 else self.rng.randrange(MOST_GAPS)

    def _stretched(self, prompt, gaps):
        """The prompt as (text, learned, positions left out before it): `gaps` positions in all, spread over the stream by chance."""
        cuts = [m.end() for m in re.finditer(";", prompt)]
        if not gaps or not cuts:
            return [(prompt, 0, 0)]
        cuts = sorted(self.rng.sample(cuts, min(len(cuts), self.rng.randint(1, 40))))
        shares = [self.rng.random() for _ in cuts]
        sizes = [round(gaps * x / sum(shares)) for x in shares]
        bounds = [0, *cuts, len(prompt)]
        return [(prompt[a:b], 0, size) for a, b, size in zip(bounds, bounds[1:], [0, *sizes])]

    def _sample(self, kind, parts):
        """`parts`: (text, learned, positions left out before it) in order."""
        ids, learned, positions, at = [], [], [], 0
        for text, learn, gap in parts:
            at += gap
            piece = self.tokenizer.encode(text)
            ids += piece
            learned += [learn] * len(piece)
            positions += range(at, at + len(piece))
            at += len(piece)
        ids = np.array(ids)
        return Sample(kind, ids, np.array(positions), self._weight[ids] * np.array(learned, np.float32))

    def plain(self, keys, n, asked=None):
        s = make_stream(self.words, self.rng, keys, n)
        order = s.order[:asked] if asked else s.order
        user = fmt.user_text(s.order, s.pairs)
        prompt = fmt.render([Message("user", user)])
        if asked:  # a single question: the answer starts in the middle of the list
            at = self.rng.randrange(len(s.order) - asked + 1)
            order = s.order[at : at + asked]
            if at:
                prompt += fmt.answer_text(s.order[:at], s.last) + "\n"
        answer = fmt.answer_text(order, s.last) + (fmt.END if order[-1] == s.order[-1] else "")
        return self._sample("plain", [*self._stretched(prompt, self._gaps()), (answer, 1, 0)])

    def episode(self, keys, n):
        """Everything a tool episode needs: stream, user text, spans of the fragments, their ids and the positions to leave out.

        A stream is as long as its positions say: one with gaps is cut into as many fragments as a real one of that length. In a
        quarter of all episodes the number is another one, which is not learned: what follows has to cope with it.
        """
        s = make_stream(self.words, self.rng, keys, n)
        user = fmt.user_text(s.order, s.pairs)
        gaps = self._gaps()
        k = fmt.fragments_for(len(s.pairs) + gaps // TOKENS_PER_UPDATE)
        asked = max(1, k + self.rng.choice((-2, -1, 1, 2))) if self.rng.random() < 0.25 else k
        return s, user, cut(user, asked), new_ids(self.rng, asked), gaps, asked == k

    def calls(self, user, pieces, idents):
        k = len(idents)
        mean = round((pieces[-1][1] - pieces[0][0]) / k)
        return [
            Message("system", fmt.SYSTEM),
            Message("user", user),
            Message("assistant", "", (fmt.cut_call(k),)),
            Message("tool", fmt.cut_result(2, idents, mean)),
            Message("assistant", "", tuple(fmt.fold_call(i) for i in idents[:-1])),
            *[Message("tool", fmt.fold_result(i)) for i in idents[:-1]],
        ]

    def cut(self, keys, n):
        """Before folding: the call that cuts, its result, then the calls that fold (or the answer when there is one fragment)."""
        s, user, pieces, idents, gaps, right = self.episode(keys, n)
        m = self.calls(user, pieces, idents)
        turn = self._stretched(fmt.render(m[:2], fmt.TOOLS), gaps)
        call, result = fmt.render_message(m[2])[len(fmt.START + "assistant\n") : -1], "\n" + fmt.render([m[3]])
        after = fmt.answer_text(s.order, s.last) if len(idents) == 1 else "\n".join(map(fmt.render_call, m[4].calls))
        return self._sample("cut", [*turn, (call, int(right), 0), (result, 0, 0), (after + fmt.END, 1, 0)])

    def folded(self, keys, n):
        """After folding: markers, the open end of the stream, the calls so far, then the answer from what is still shown.

        How many markers there are says nothing of how much is open: long streams leave more than these short ones have.
        """
        s = make_stream(self.words, self.rng, keys, n)
        user = fmt.user_text(s.order, s.pairs)
        k = self.rng.randint(2, 10)
        pieces, idents = self._uneven(user, k, self.rng.uniform(0.25, 0.9)), new_ids(self.rng, k)
        messages = self.calls(user, pieces, idents)
        end = pieces[-2][1]
        shown = folded_user(user, pieces, idents, k - 1)
        messages[1] = Message("user", shown)
        prompt = fmt.render(messages, fmt.TOOLS)
        # As under a splice, where what is folded keeps its positions: in half of the samples there is a gap behind the last marker.
        last = fmt.fold_marker(idents[k - 2], pieces[k - 2][1] - pieces[k - 2][0])
        open_at = prompt.index(last) + len(last)
        answer = fmt.answer_text(s.order, s.last) + fmt.END
        sample = self._sample("folded", [(prompt[:open_at], 0, 0), (prompt[open_at:], 0, self._gaps()), (answer, 1, 0)])
        for key in s.order:  # a value that is folded away cannot be known: nothing is learned from it
            if " %s:" % key not in user[end:]:
                sample.weights[sample.ids == self.vocabulary.id["\u2581%s." % s.last[key]]] = 0
        return sample

    @staticmethod
    def _uneven(user, k, kept):
        """`k` fragments, the newest of which is the share `kept` of the stream and the others equal."""
        first, last = cut(user, 1)[0]
        size = (last - first) * (1 - kept) / (k - 1)
        bounds = [first, *[border(user, first + size * i, size / 4) for i in range(1, k)], last]
        return list(zip(bounds, bounds[1:]))

    def ids(self, k):
        """Drill: the result of a cut and the calls that fold, without the stream."""
        idents = new_ids(self.rng, k)
        chars = self.rng.randrange(300, 9000)
        tool = "\n" + fmt.render([Message("tool", fmt.cut_result(2, idents, chars))])
        call = fmt.START + "assistant\n" + fmt.render_call(fmt.cut_call(k)) + fmt.END
        folds = "\n".join(fmt.render_call(fmt.fold_call(i)) for i in idents[:-1])
        return self._sample("ids", [(call, 0, 0), (tool, 0, 0), (folds + fmt.END, 1, 0)])

    def noise(self, size):
        """Drill: random tokens, repeated; keeps copying alive for tokens that are rare elsewhere."""
        v = self.vocabulary
        ids = np.array([self.rng.randrange(3, len(v)) if self.rng.random() < 0.5 else v.id["%02x" % self.rng.randrange(256)] for _ in range(size)])
        ids = np.concatenate([ids, ids])
        weights = np.concatenate([np.zeros(size + 1), np.full(size - 1, 0.5)]).astype(np.float32)
        return Sample("noise", ids, np.arange(2 * size), weights)
