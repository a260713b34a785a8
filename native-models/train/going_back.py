"""Going back: a stream is cut and folded, and what is asked for may stand in a part that is folded. A sample is one decision of the teacher
(src/lab/collect/lessons.ts): which fragment to restore, whether to fold what is open, or to answer; on its own way, or where somebody else has left it.

All depends on whether any of the keys that are asked for is missing in what is shown, so that is told as well: each of these keys is to look for an update
of its own, and who decides, at keys that found none.
"""
import re
from typing import NamedTuple

import numpy as np

from . import format as fmt
from .cuts import cut
from .data import MOST_GAPS, NUMBER, READ
from .format import Message
from .found import Found, pairs
from .stream import make_stream

MOST_BACK = 7  # fragments from the newest of which the first can be reached within the calls of a turn
MOST_ASKED = 16
TOLD = 4  # at how many of the keys that are missing, or are not, who decides is told to look
ASTRAY = 0.2  # how often a step on the way is not the teacher's
ON = 0.7  # how often one more step is taken before the decision
GAPPED = 0.3  # how often positions are left out behind what is folded
SAID = {"fold_fragment": (fmt.fold_call, fmt.fold_result), "restore_fragment": (fmt.restore_call, fmt.restore_result)}  # and what is answered
DECIDED, COPIED = 2 * NUMBER, 0.9  # how much a decision counts, and a token of an id


class Cut(NamedTuple):
    """A stream in fragments: their spans in `user`, ids, and which of the keys `asked` each has."""

    user: str
    asked: list
    spans: list
    idents: list
    kept: list

    def found(self, shown):
        return set().union(*(self.kept[n] for n in shown))

    def step(self, shown):
        """What the teacher does where the fragments `shown` are open: (which it restores, which it folds); None: it answers."""
        found = self.found(shown)
        if len(found) == len(self.asked) or shown[0] == 0:
            return None
        return shown[0] - 1, [] if found else list(shown)

    def calls(self, restored, folded):
        return [("restore_fragment", restored), *(("fold_fragment", n) for n in folded)]

    def call(self, name, n):
        return SAID[name][0](self.idents[n])


class GoingBack:
    def __init__(self, maker):
        self.maker, self.rng = maker, maker.rng

    def draw(self):
        rng = self.rng
        keys, n = (46, rng.randint(9, 20)) if rng.random() < 0.3 else (rng.randint(6, 30), rng.randint(2, 16))
        stream = make_stream(self.maker.words, rng, keys, n, rng.choice(("middle", "start", None)))
        asked = stream.order
        if len(asked) > keys // 2:
            asked = rng.sample(asked, rng.randint(1, min(MOST_ASKED, keys)))
        user = fmt.user_text(asked, stream.pairs)
        count = max(2, round(n / 6)) if n > READ and rng.random() < 0.6 else rng.randint(2, MOST_BACK)
        spans = cut(user, count)
        kept = [set(re.findall(r"(?:^|[\n ])([a-z]+): ", user[a:b])) & set(asked) for a, b in spans]
        made = Cut(user, asked, spans, self.maker._ids(count), kept)
        shown, steps = self._way(made)
        while shown[0] == 0 and rng.random() < 0.6:  # nothing is left to decide there
            shown, steps = self._way(made)
        return self._decision(made, shown, steps)

    def _way(self, made):
        """Which fragments are open at the decision, and the calls up to it, step by step."""
        rng, last = self.rng, len(made.idents) - 1
        shown, steps = [last], [[("fold_fragment", n) for n in range(last)]]
        while shown[0] > 0 and rng.random() < ON:
            right, astray = made.step(shown), rng.random() < ASTRAY
            if right is None and not astray:
                break
            before = shown[0] - 1
            folded = (shown if rng.random() < 0.5 else []) if astray else right[1]
            steps.append(made.calls(before, folded))
            shown = [before, *(n for n in shown if n not in folded)]
        return shown, steps

    def _decision(self, made, shown, steps):
        first, end, rng = made.spans[0][0], made.spans[-1][1], self.rng
        parts = [made.user[a:b] if n in shown else fmt.fold_marker(made.idents[n], b - a) for n, (a, b) in enumerate(made.spans)]
        messages = [
            Message("system", fmt.SYSTEM),
            Message("user", made.user[:first] + "".join(parts) + made.user[end:], note=fmt.note(fmt.thousands(made.user))),
            Message("assistant", "", (fmt.cut_call(len(made.spans)),)),
            Message("tool", fmt.cut_result(2, made.idents, round((end - first) / len(made.spans)))),
        ]
        for step in steps:
            messages.append(Message("assistant", "", tuple(made.call(*each) for each in step)))
            messages += [Message("tool", SAID[name][1](made.idents[n])) for name, n in step]
        prompt, step = fmt.render(messages, fmt.TOOLS), made.step(shown)
        said = [made.call(*each) for each in made.calls(*step)] if step else []
        text = "\n".join(map(fmt.render_call, said)) + fmt.END if said else fmt.SENTENCE
        ends = [each.end() for each in re.finditer(re.escape(fmt.MARKER_END), prompt)]
        at, gap = (rng.choice(ends), rng.randrange(MOST_GAPS)) if ends and rng.random() < GAPPED else (len(prompt), 0)
        return self._told(self.maker._sample("back", [(prompt[:at], 0, 0), (prompt[at:], 0, gap), (text, 1, 0)]), made, shown, said)

    def _told(self, sample, made, shown, said):
        """The same with its decisions weighed, and told: where ids stand, which of the keys have updates, and at which of them to decide."""
        encode, known = self.maker.tokenizer.encode, self.maker.vocabulary.id
        text, first = Found(sample.ids.tolist()), int(np.flatnonzero(sample.weights)[0])
        question = text.last([known[fmt.QUESTION]], first)
        found, steps, places = made.found(shown), [], {True: [], False: []}
        for key in made.asked:
            name = encode(" " + key)
            listed = max(text.last([*name, after], first) for after in (known[","], known[fmt.FORM]))
            update = max(text.last(encode(space + key + ":"), question) for space in (" ", ""))
            if len(name) == 1 and listed > question:
                steps.append((listed, update if key in found else listed))
                places[key in found].append(listed)
        looks, hints, at = [], [], first
        sample.weights[first] = DECIDED
        for call in said:
            place = text.last(encode(call.arguments["fragment_id"]), at)
            looks += [(at + 1 + n, place + n) for n in range(3)]
            sample.weights[at + 1 : at + 4] = COPIED
            at += 4
        if said:  # what is missing; and behind the id, what is not, or there is nothing of it
            sample.weights[first + 4] = DECIDED
            hints = self._some(first, places[False]) + (self._some(first + 4, places[True]) if found else [(first + 4, question)])
        elif not places[False]:
            hints = [(first, question)]
        return sample._replace(looks=pairs(looks), hints=pairs(hints), steps=pairs(steps))

    def _some(self, token, places):
        return [(token, place) for place in self.rng.sample(places, min(TOLD, len(places)))]
