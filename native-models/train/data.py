"""Samples: interference streams, plain prompts, tool transcripts before and after folding, and two small drills.

A sample is (ids, positions, weights): `weights[i] > 0` where token i belongs to a completion and is learned. Every
kind is built from the same text functions, so nothing is trained that the runtime does not show; only positions are
sometimes left out, in plain prompts and tool transcripts alike, to meet late places without long prompts.
"""
import random
import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from . import chat
from . import format as fmt
from .cuts import border, cut
from .format import Message
from .found import Found, pairs
from .speller import Speller
from .stream import make_stream

MOST_GAPS = 9000  # positions: with those of the stream itself, as long as 46 keys with 68 updates each
READ = 8  # updates of a key, at most, that a prompt of either kind is read from: no value is learned where more are shown, but of few keys
MOST_NOTED, MOST_FRAGMENTS = 140, fmt.MOST_FRAGMENTS  # thousands of characters, and what the teacher makes of them
MIXED = 0.3  # of the streams of made-up words: how many have known ones, too
NUMBER = 4  # how much the number of fragments counts, and that the answer begins: one token a sample
OFTEN = 128  # updates of a key, at most, in streams of few keys
GUESSED = 0.05  # how much a value counts that is folded away, so that something is said


class Sample(NamedTuple):
    kind: str  # as in the shares of a course; "form" is a plain prompt of which no value is learned
    ids: np.ndarray
    positions: np.ndarray
    weights: np.ndarray
    looks: np.ndarray = np.zeros((0, 2), np.int64)  # (a learned token, where it is to be found)
    steps: np.ndarray = np.zeros((0, 2), np.int64)  # (a token, which one before it says what is next): for the layer before the last
    hints: np.ndarray = np.zeros((0, 2), np.int64)  # (a learned token, what decides it): looked at as well, but not what is to be said


class Unseen(NamedTuple):
    keys: list
    values: list


def new_ids(rng, count, alike=False):
    """`alike`: made of few pairs of digits, so that each pair stands in several of them."""
    if not alike:
        return ["f%05x" % x for x in rng.sample(range(1 << 20), count)]
    first, rest = rng.sample("0123456789abcdef", 3), ["%02x" % x for x in rng.sample(range(256), 4)]
    made = set()
    while len(made) < count:
        made.add("f" + rng.choice(first) + rng.choice(rest) + rng.choice(rest))
    return rng.sample(sorted(made), count)


def folded_user(text, pieces, idents, fold):
    """The content of the user message as shown when the first `fold` fragments are folded."""
    first, end = pieces[0][0], pieces[fold - 1][1]
    marks = "".join(fmt.fold_marker(i, b - a) for i, (a, b) in zip(idents, pieces[:fold]))
    return text[:first] + marks + text[end:]


def _updates(text):
    """The last value of every key in a text."""
    return dict(re.findall("([a-z]+): ([a-z]+);", text))


class Maker:
    """Draws samples of every kind. `completion` weights: values, keys and ids count in full, boilerplate less."""

    def __init__(self, words, tokenizer, seed, alike=0.0):
        """`alike`: how often ids are like each other."""
        self.words, self.tokenizer, self.rng, self.alike = words, tokenizer, random.Random(seed), alike
        self.vocabulary, self.speller = tokenizer.vocabulary, Speller(words)
        heavy = {" " + k for k in words.keys} | {"\n", fmt.END, fmt.CUT_CLOSE, fmt.FOLD_NEXT, fmt.FOLD_CLOSE}  # the latter: go on or stop
        self._weight = np.full(len(self.vocabulary), 0.25, np.float32)
        for i, t in enumerate(self.vocabulary.tokens):
            if i in self.vocabulary.parts or t.text.replace("\u2581", " ") in heavy or (len(t.text) == 2 and t.kind == 1):
                self._weight[i] = 1.0
        for digit in "123456789":
            self._weight[self.vocabulary.id[digit]] = 1.0

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

    def reordered(self, keys, n, read=READ):
        """A stream that asks for the keys that stand together in it."""
        return self.plain(keys, n, order=self.rng.choice(("middle", "start")), read=read)

    def often(self, keys, n):
        """A stream of few keys with more updates than any other is read from, plainly or after a fold: the newest of eight is not yet that of
        a hundred."""
        made = self.rng.random() < 0.4 and self.folded(keys, n, True, read=OFTEN)
        if not made or ((0 < made.weights) & (made.weights <= GUESSED)).any():  # what is folded away is not guessed here but restored elsewhere
            make = self.reordered if self.rng.random() < 0.5 else self.plain  # so that it is not read by lateness alone
            made = make(keys, n, read=OFTEN)
        return made._replace(kind="often")

    def plain(self, keys, n, asked=None, order=None, read=READ):
        """A stream and its answer. In one of seven prompts positions are left out, and in all with more updates than `read` nothing
        is; in both the form of the answer and the order of the list are learned but no value, as in tool prompts before folding."""
        s = make_stream(self.words, self.rng, keys, n, order)
        order = s.order[:asked] if asked else s.order
        user = fmt.user_text(s.order, s.pairs)
        prompt = fmt.render([Message("user", user)])
        if asked:  # a single question: the answer starts in the middle of the list
            at = self.rng.randrange(len(s.order) - asked + 1)
            order = s.order[at : at + asked]
            if at:
                prompt += fmt.answer_text(s.order[:at], s.last) + "\n"
        end = fmt.END if order[-1] == s.order[-1] else ""
        gaps = self._gaps() if n <= READ and self.rng.random() < 0.3 else 0
        if gaps or n > read:
            return self._sample("form", [*self._stretched(prompt, gaps), *self._sentences(order, s, lambda key: 0), (end, 1, 0)])
        return self._looking(self._sample("plain", [(prompt, 0, 0), (fmt.answer_text(order, s.last) + end, 1, 0)]), order, s.last)

    @staticmethod
    def _sentences(order, s, known):
        """The answer in parts; the value of a key is learned where `known(key)`."""
        parts = []
        for n, key in enumerate(order):
            parts += [("\n" * (n > 0) + "%s %s is" % (fmt.SENTENCE, key), 1, 0), (" %s." % s.last[key], known(key), 0)]
        return parts

    def _number(self, noted):
        """How many fragments, and whether that is the teacher's number: in a fifth of all cases it is another one, which is not
        learned; what follows has to cope with it."""
        right = fmt.fragments_for(noted)
        k = self.rng.randint(1, MOST_FRAGMENTS) if self.rng.random() < 0.2 else right
        return k, k == right

    def _ids(self, count):
        return new_ids(self.rng, count, self.rng.random() < self.alike)

    def calls(self, user, noted, idents, mean, marks=fmt.MARKS):
        """A tool episode from the system text to the results of the folds; `mean`: characters of a fragment, as told."""
        return [
            Message("system", fmt.SYSTEM),
            Message("user", user, note=fmt.note(noted)),
            Message("assistant", "", (fmt.cut_call(len(idents), marks),)),
            Message("tool", fmt.cut_result(2, idents, mean)),
            Message("assistant", "", tuple(fmt.fold_call(i) for i in idents[:-1])),
            *[Message("tool", fmt.fold_result(i)) for i in idents[:-1]],
        ]

    def cut(self, keys, n):
        """Before folding: the call that cuts, its result, then the calls that fold (or the answer when there is one fragment)."""
        s = make_stream(self.words, self.rng, keys, n)
        return self._before(s, fmt.thousands(fmt.user_text(s.order, s.pairs)))

    def drill(self):
        """The same with a stream that is much shorter than its note says, or has none."""
        rng = self.rng
        s = make_stream(self.words, rng, rng.randint(2, 8), rng.randint(1, 4))
        noted = None if rng.random() < 0.15 else round(2 * (MOST_NOTED / 2) ** rng.random() if rng.random() < 0.5 else rng.randint(2, MOST_NOTED))
        return self._before(s, noted)

    def number(self):
        """Drill: the call that cuts alone, after a very short stream."""
        rng = self.rng
        s = make_stream(self.words, rng, 2, rng.randint(1, 2))
        noted = rng.randint(2, MOST_NOTED)
        messages = [Message("system", fmt.SYSTEM), Message("user", fmt.user_text(s.order, s.pairs), note=fmt.note(noted))]
        call = (fmt.CUT_OPEN, 1, 0), (str(fmt.fragments_for(noted)), NUMBER, 0), (fmt.CUT_CLOSE + fmt.END, 1, 0)
        return self._sample("cut", [(fmt.render(messages, fmt.TOOLS), 0, 0), *call])

    def _before(self, s, noted):
        user = fmt.user_text(s.order, s.pairs)
        k, right = self._number(noted)
        idents = self._ids(k)
        m = self.calls(user, noted, idents, round((noted or 1) * 1000 * self.rng.uniform(0.9, 1) / k))
        close = fmt.CUT_CLOSE + fmt.END
        call = (fmt.CUT_OPEN, 1, 0), (str(k), NUMBER * right, 0), (close, 1, 0)
        start = [(fmt.render(m[:2], fmt.TOOLS), 0, 0), *call, ("\n" + fmt.render([m[3]]), 0, 0)]
        if k == 1:  # no value is learned of more updates than any plain prompt is read from
            return self._sample("cut", [*start, *self._sentences(s.order, s, lambda key: int(len(s.values[key]) <= READ)), (fmt.END, 1, 0)])
        folds = "\n".join(map(fmt.render_call, m[4].calls)) + fmt.END
        at = len(fmt.FOLD_OPEN), len(fmt.FOLD_OPEN) + len(idents[0])
        # The first id is the hardest to find: the others follow one that was found.
        made = self._sample("cut", [*start, (folds[: at[0]], 1, 0), (folds[at[0] : at[1]], NUMBER, 0), (folds[at[1] :], 1, 0)])
        return self._told(made, idents[:-1])

    def _told(self, sample, idents):
        """The same with the places of the ids that are folded in the result of the cut, and of what follows them: another one or the last."""
        ids, looks = sample.ids.tolist(), []
        text = Found(ids)
        for ident in idents:
            tokens = self.tokenizer.encode(ident)
            place, call = text.first(tokens, 0), text.last(tokens, len(ids))
            if place < call:
                looks += [(call + n, place + n) for n in range(len(tokens) + 1)]
        return sample._replace(looks=pairs(looks))

    def folded(self, keys, n, even, marks=fmt.MARKS, read=READ):
        """After folding: markers, the open end of the stream, the calls so far, then the answer from what is still shown.

        `even`: cut as the teacher does, mostly; else between a quarter and nine tenths of the stream are open, so that how many markers
        there are says nothing of how much is open.
        """
        s = make_stream(self.words, self.rng, keys, n)
        user = fmt.user_text(s.order, s.pairs, marks)
        if even:
            k = fmt.fragments_for(fmt.thousands(user))
            if k == 1 or self.rng.random() < 0.2:
                k = max(2, round(n / self.rng.uniform(2, READ)))
            pieces = cut(user, k, *marks)
        else:
            k = self.rng.randint(2, 9)
            pieces = self._uneven(user, k, self.rng.uniform(0.25, 0.9))
        idents = self._ids(k)
        messages = self.calls("", None, idents, round((pieces[-1][1] - pieces[0][0]) / k), marks)
        end = pieces[-2][1]
        messages[1] = Message("user", folded_user(user, pieces, idents, k - 1), note=fmt.note(fmt.thousands(user)))
        prompt = fmt.render(messages, fmt.TOOLS)
        # As under a splice, where what is folded keeps its positions: in half of the samples there is a gap behind the last marker.
        last = fmt.MARKER_END
        open_at = prompt.rindex(last) + len(last)
        parts = [(prompt[:open_at], 0, 0), (prompt[open_at:], 0, self._gaps())]
        # A value that is folded away cannot be known, and one of more updates than any plain prompt is read from is not learned here either.
        shown = Counter(re.findall(r" (\S+):", user[end:]))
        parts += self._sentences(s.order, s, lambda key: GUESSED if not shown[key] else int(shown[key] <= read))
        made = self._sample("folded", [*parts, (fmt.END, 1, 0)])
        made.weights[np.flatnonzero(made.weights)[0]] = NUMBER  # to answer and not to fold or restore once more
        return self._looking(made, s.order, s.last)

    def _looking(self, sample, order, last):
        """The same with the places of its keys in the list that is asked for, and of its values in the stream."""
        ids, v = sample.ids.tolist(), self.vocabulary
        text, encode, steps = Found(ids), self.tokenizer.encode, []
        begin, at, named, looks = text.last([v.id["assistant\n"]], len(ids)), 0, 0, []
        for key in order:
            name, value, said = encode(" " + key), encode(" %s." % last[key]), encode(" is")
            start = text.first([v.id[fmt.SENTENCE], *name, *said], max(at, begin))
            if start < 0:
                continue
            before, at = named, start + 1 + len(name) + len(said)
            if before:
                steps.append((start, before))  # the sentence before ended its key there
            named = at - 1
            listed = max(text.last([*name, after], begin) for after in (v.id[","], v.id[fmt.FORM]))
            update, end = encode(" %s:" % key), at + len(value)
            if listed >= 0:
                looks += [(start + 1 + n, listed + n) for n in range(len(name))]
            if len(update) > 1:  # the token after a word of pieces looks at the word's last ones, wherever the word stands
                steps += [(named, named)] + [(listed, listed - 1)] * (listed >= 0)
                steps += [(n + len(update), n + len(update) - 1) for n in text.all(update, begin)]
                if listed >= 0 and before:  # those within a word, at what stood before it: words may begin alike
                    steps += [pair for n in range(1, len(name)) for pair in ((start + n, before), (listed + n, listed - 1))]
                if listed >= 0 and end < len(ids):  # whether another key is listed after this one
                    steps += [(end - 1, named), (listed + len(name), listed + len(name))]
                    looks.append((end, listed + len(name)))
            place = text.last([*update, *value[:-1]], begin)
            if place >= 0:
                stands = place + len(update)
                looks += [(at + n, stands + n) for n in range(len(value))]
                if len(value) > 2:  # those within a value, at its key: values may begin alike, too
                    steps += [pair for n in range(1, len(value)) for pair in ((at + n - 1, named), (stands + n, stands - 1))]
        looks = [pair for pair in looks if sample.weights[pair[0]] > 0]
        return sample._replace(looks=pairs(looks), steps=pairs(steps))

    def summary(self, keys, n):
        """A summary of a fragment, which keeps the keys that it is to be about."""
        s = make_stream(self.words, self.rng, keys, n)
        user = fmt.user_text(s.order, s.pairs)
        start, end = self.rng.choice(cut(user, self.rng.randint(1, 4)))
        values = _updates(user[start:end])
        about = [key for key in s.order if key in values]
        if self.rng.random() < 0.5:
            about = self.rng.sample(about, self.rng.randint(1, len(about)))
        prompt = fmt.render([Message("user", fmt.summary_request(user[start:end], ", ".join(about)))])
        return self._sample("summary", [(prompt, 0, 0), (fmt.answer_text(about, values) + fmt.END, 1, 0)])

    def summarised(self, keys, n):
        """The answer where the older part of the stream is a summary: from it, or from what is open if that has a newer value."""
        s = make_stream(self.words, self.rng, keys, n)
        user = fmt.user_text(s.order, s.pairs)
        *older, (end, _) = self._uneven(user, self.rng.randint(2, 3), self.rng.uniform(0.15, 0.7))
        idents = self._ids(len(older) + 1)
        marks, size = "", older[0][1] - older[0][0]
        for ident, (a, b) in zip(idents, older):
            values = _updates(user[a:b])
            marks += fmt.summary_marker(ident, b - a, fmt.answer_text([key for key in s.order if key in values], values))
        shown, focus = user[: older[0][0]] + marks + user[end:], ", ".join(s.order)
        messages = [
            Message("system", fmt.SYSTEM),
            Message("user", shown, note=fmt.note(fmt.thousands(user))),
            Message("assistant", "", (fmt.cut_call(len(idents)),)),
            Message("tool", fmt.cut_result(2, idents, size)),
            Message("assistant", "", tuple(fmt.summary_call(ident, focus) for ident in idents[:-1])),
            *[Message("tool", fmt.summary_result(ident)) for ident in idents[:-1]],
        ]
        # A person may have summarised it, too: then there are no calls.
        prompt = fmt.render(messages, fmt.TOOLS) if self.rng.random() < 0.5 else fmt.render([Message("user", shown)])
        return self._sample("summary", [(prompt, 0, 0), (fmt.answer_text(s.order, s.last) + fmt.END, 1, 0)])

    @staticmethod
    def _uneven(user, k, kept):
        """`k` fragments, the newest of which is the share `kept` of the stream and the others equal."""
        first, last = cut(user, 1)[0]
        size = (last - first) * (1 - kept) / (k - 1)
        bounds = [first, *[border(user, first + size * i, size / 4) for i in range(1, k)], last]
        return list(zip(bounds, bounds[1:]))

    def ids(self, k):
        """Drill: the result of a cut and the calls that fold, without the stream."""
        idents = self._ids(k)
        chars = self.rng.randrange(300, 9000)
        tool = "\n" + fmt.render([Message("tool", fmt.cut_result(2, idents, chars))])
        call = fmt.START + "assistant\n" + fmt.render_call(fmt.cut_call(k)) + fmt.END
        folds = "\n".join(fmt.render_call(fmt.fold_call(i)) for i in idents[:-1])
        return self._told(self._sample("ids", [(call, 0, 0), (tool, 0, 0), (folds + fmt.END, 1, 0)]), idents[:-1])

    def name(self, rng):
        """A word that is in no list."""
        return self.speller.made_up(rng, 1)[0]

    def noise(self, size):
        """Drill: random tokens, repeated; keeps copying alive for tokens that are rare elsewhere."""
        v = self.vocabulary
        ids = np.array([self.rng.randrange(3, len(v)) if self.rng.random() < 0.5 else v.id["%02x" % self.rng.randrange(256)] for _ in range(size)])
        ids = np.concatenate([ids, ids])
        weights = np.concatenate([np.zeros(size + 1), np.full(size - 1, 0.5)]).astype(np.float32)
        return Sample("noise", ids, np.arange(2 * size), weights, np.arange(size + 1, 2 * size)[:, None] - [0, size])

    def chat(self):
        """Plain talk; where the context tools are at hand, too."""
        said, answer = chat.exchange(self.rng, self.words)
        tools = fmt.TOOLS if self.rng.random() < 0.3 else ()
        return self._sample("chat", [(fmt.render([Message("user", said)], tools), 0, 0), (answer + fmt.END, 1, 0)])

    def unseen(self, keys, n, folded):
        """A stream of words that are in no list, read plainly or after a fold (of all but the newest fragment if it is long)."""
        count = keys * n
        some = self.speller.made_up(self.rng, keys + 2 * count)
        joined = [a + " " * (self.rng.random() < 0.3) + b if self.rng.random() < 0.3 else a for a, b in zip(some[keys::2], some[keys + 1 :: 2])]
        share = self.rng.random() if self.rng.random() < MIXED else 0
        words = Unseen(self._mixed(some[:keys], self.words.keys, share), self._mixed(joined, self.words.values, share))
        made = self._of(words, lambda: self.folded(keys, n, n > READ) if folded and n > 1 else self.plain(keys, n))
        return made._replace(kind="unseen", weights=np.where(made.weights > GUESSED, 1, made.weights).astype(np.float32))

    def _mixed(self, some, known, share):
        """With a share of known words among them."""
        known = self.rng.sample(known, len(some)) if share else some
        return [b if self.rng.random() < share else a for a, b in zip(some, known)]

    def unseen_cut(self, keys, n):
        """The calls that cut and fold such a stream."""
        some = self.speller.made_up(self.rng, keys + keys * n)
        return self._of(Unseen(some[:keys], some[keys:]), lambda: self.cut(keys, n))._replace(kind="unseen")

    def _of(self, words, make):
        """What `make` draws from other words."""
        own, self.words = self.words, words
        try:
            return make()
        finally:
            self.words = own
