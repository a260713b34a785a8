"""What visitors ask: streams and questions in other words than the task's own, with other separators, names and markers, several in one conversation.

Phrases are drawn from a few dozen and from sentences of random words, so that what is learned is where things stand and not how it is said. Answers
are always the task's own sentences. Every value and every key of an answer is told its place: the last update of that key in the conversation, and
the question. Texts are laid out as strings with known places, and places of characters become places of tokens in the end.
"""
from typing import NamedTuple

import numpy as np

from . import chat
from . import format as fmt
from .data import Sample
from .format import Message
from .found import pairs
from .stream import make_stream

PLACED = {"; ": 4, ", ": 5, "\n": 7, ";\n": 1, ". ": 2, " | ": 1, " / ": 1, ".\n": 1}  # what stands between updates: how often
NAMED = {": ": 8, " = ": 2, " is ": 2, " is now ": 1, " -> ": 1, ":": 1, " becomes ": 1, "=": 1}  # between a key and its value
ITEMS = "", "", "", "- ", "* "  # before an update that has a line of its own
FRAMES = [
    "I will tell you values of {n} keys: {keys}. They change again and again.", "Here are updates of {keys}. Keep the newest value of each.",
    "Please read these updates.", "Below is a list of changes. Later ones replace earlier ones.", "As my secretary, follow these {n} things: {keys}.",
    "These are my notes, oldest first.", "Keep track of the following values.", "Now read this:", "This is a log.", "Another one:", "Next stream:",
    "Read the text below and remember the last value of each key.", "Next are updates of {n} keys: {keys}.", "Once more, with other values.",
    "The {n} keys to watch are {keys}. Each update replaces the value before it, and at the end I ask for the latest ones.",
]  # fmt: skip
MARKS = [
    ("", ""), ("", ""), ("The log starts here.", "The log ends here."), ("The updates start now.", "That was the last update."), ("---", "---"),
    ("[begin]", "[end]"), ("<updates>", "</updates>"), ("Start:", "End."), ("BEGIN", "END"), ("The text starts on the next line.", "The text is over."),
    ("=== log ===", "=== end ==="), ("Here it comes:", "That is all."), ("Updates begin.", "Updates end."),
]  # fmt: skip
MANY = [
    "What is the current value of each of these keys: {keys}?", "What are the last values of {keys}?", "Tell me the current values of {keys}.",
    "Which value does each of these have now: {keys}?", "Give me the latest value of {keys}.", "Now answer: {keys}?", "{keys}?",
    "What are {keys} now?", "I would like to know the values of {keys}.", "What is the current value (the last one given) of each key: {keys}?",
]  # fmt: skip
ONE = [
    "What is the current value of {keys}?", "What is {keys} now?", "And {keys}?", "What about {keys}?", "Which value does {keys} have?", "{keys}?",
    "Tell me the last value of {keys}.", "What was the last value of {keys}?", "Do you know the value of {keys}?", "What does {keys} stand at?",
]  # fmt: skip
ENDS = ["", "", "", fmt.FORM[1:], " One sentence for each.", " Use the form: The current value of <key> is <value>.", " Please be exact.", " Thank you."]
PLAIN_WORDS = (
    "a about after all also an and any are as at be been but by can come could day do even first for from get give go good have he her here him his how "
    "I if in into it its just know like look make many me more most my new no not now of on one only or other our out over people say see she so some "
    "take than that the their them then there these they thing think this time to two up us use very want was way we well were what when where which "
    "who will with work would year you your list value key update change please note last current answer question read each every follow sentence"
).split()
KNOWN, TWO = 0.35, 0.15  # of the words: how many come from the task's lists; and have two parts, if they are made up
OWN = 0.3  # of the streams: how many are worded as the task's own, and
SEPARATED = 0.5  # of these: how many have other separators all the same
GREETED, MORE, FOLLOWED, AGAIN = 0.15, 0.5, 0.5, 0.35  # how often there is a greeting; another stream; a question behind an answer; and keys come again
WORDED = 0.5  # of what stands around a list of keys: how often it is random words
ALIKE = 0.4  # of the markers that are sentences: how many end with one that has words of the first
SIGNS = "#=*-+~<>|@$%&_:!."  # that markers are made of, or decorated with
WITH_TOOLS = 0.25  # of the conversations: how many have the tools at hand
REFUSED, ENDLESS = 0.35, 0.4  # between other markers: how often a call was refused before; and of these calls, how many never ended
ANSWERED, LONG = 0.4, 0.5  # between other markers: how often the answer is learned; and of the calls, how many follow a stream of the task's own size
GUESS = 0.25  # what the form of an answer counts against its keys and values


class Asked(NamedTuple):
    text: str
    at: list  # (key, where in the text it stands)


class Visits:
    def __init__(self, maker):
        self.maker, self.words, self.tokenizer, self.speller = maker, maker.words, maker.tokenizer, maker.speller

    def draw(self):
        rng = self.maker.rng
        talk = Talk()
        tools = fmt.TOOLS if rng.random() < WITH_TOOLS else ()
        if tools:
            system = rng.choice((fmt.GENERAL, fmt.GENERAL, "", self._chatter(rng)))  # with the task's own prompt a stream is cut first
            talk.say(fmt.START + "system\n" + system + fmt.tools_block(tools) + fmt.END + "\n")
        if rng.random() < GREETED:
            self._greeting(talk, rng)
        known, streams = {}, 1 + (rng.random() < MORE) + (rng.random() < 0.15)
        for n in range(streams):
            most = 46 if streams == 1 and rng.random() < 0.3 else 16
            self._stream(talk, rng, known, rng.randint(1, most), n and rng.random() < AGAIN)
            while rng.random() < FOLLOWED:
                self._follow_up(talk, rng, known)
        return talk.sample(self.tokenizer, "visits")

    def marked(self):
        """A stream which stands between other markers than the task's own: what is answered after the folds, or the calls that cut and fold,
        where the markers are quoted from the prompt. Half of these are far shorter than their note says, since it is the calls that are learned."""
        rng, maker = self.maker.rng, self.maker
        marks = self._marks(rng)
        if rng.random() < REFUSED:
            return self._refused(rng, marks)
        if rng.random() < ANSWERED:
            return maker.folded(46 if rng.random() < 0.7 else rng.randint(4, 24), rng.randint(5, 20), True, marks)._replace(kind="marked")
        if rng.random() < LONG:
            made = make_stream(self.words, rng, 46, rng.randint(9, 20))
            body, question = fmt.user_text(made.order, made.pairs, marks).split(fmt.QUESTION)
            opening, question = body[: body.index(fmt.RULES) + len(fmt.RULES)], fmt.QUESTION[1:] + question
            return self._marked(rng, marks, opening, body + " ", question, fmt.thousands(body + question))
        made = self._made(rng, rng.randint(2, 12), rng.randint(1, 6))
        between, named = _chosen(rng, PLACED), _chosen(rng, NAMED)
        opening = self._opening(rng, made)
        stream = between.join(key + named + value for key, value in made.pairs)
        body = opening + marks[0] + "\n" + stream + "\n\n" + marks[1] + " "
        return self._marked(rng, marks, opening, body, self._question(rng, made.order, False).text, round(2 * 66 ** rng.random()))

    def _opening(self, rng, made):
        return (self._chatter(rng) if rng.random() < 0.5 else rng.choice(FRAMES).format(n=len(made.order), keys=", ".join(made.order))) + "\n\n"

    @staticmethod
    def _told_to_cut():
        talk = Talk()
        talk.say(fmt.START + "system\n" + fmt.SYSTEM + fmt.tools_block() + fmt.END + "\n")
        return talk

    def _marked(self, rng, marks, opening, body, question, noted):
        """The calls; `noted`: as many thousands of characters as the note says."""
        talk = self._told_to_cut()
        begin = talk.user_open()
        talk.user_close(body + question + fmt.note(noted))
        self._cut(talk, rng, marks, begin + len(opening), begin + body.rindex(marks[1]), noted)
        return talk.sample(self.tokenizer, "marked")

    def _refused(self, rng, marks):
        """A call that did not quote the markers is written again; after two of them, or one that never ended, the answer comes from what is there."""
        made = make_stream(self.words, rng, 46, rng.randint(3, 8)) if rng.random() < 0.4 else self._made(rng, rng.randint(2, 20), rng.randint(1, 6))
        between, named = _chosen(rng, PLACED), _chosen(rng, NAMED)
        talk, opening, noted = self._told_to_cut(), self._opening(rng, made), round(2 * 66 ** rng.random())
        begin, body, known = talk.user_open(), opening + marks[0] + "\n", {}
        for key, value in made.pairs:
            known[key] = value, begin + len(body) + len(key + named)
            talk.steps.append(known[key][1])
            body += key + named + value + between
        body = body[: -len(between)] + "\n\n" + marks[1] + " "
        question = self._question(rng, made.order, False)
        talk.user_close(body + question.text + fmt.note(noted))
        call, told, endless = self._refusal(rng, marks, body + question.text, self.maker._number(noted)[0])
        failed = 1 if endless else rng.choice((1, 2))
        for _ in range(failed):
            talk.assistant([(call + fmt.END, 0, None)])
            talk.say(fmt.render_message(Message("tool", told)))
        if failed == 1 and not endless:
            self._cut(talk, rng, marks, begin + len(opening), begin + body.rindex(marks[1]), noted)
        else:
            self._answer(talk, rng, [(key, begin + len(body) + place) for key, place in question.at], known)
        return talk.sample(self.tokenizer, "marked")

    def _refusal(self, rng, marks, text, count):
        """(a call that does not quote both markers of a text, what it is told, whether it never ended)"""
        wrong = rng.choice(((True, False), (False, True), (True, True)))
        said = [self._misquoted(rng, mark, text) if each else mark for mark, each in zip(marks, wrong)]
        name, first = ("start_marker", said[0]) if wrong[0] else ("end_marker", said[1])
        call = fmt.render_call(fmt.cut_call(count, said))
        if rng.random() > ENDLESS:
            told = "Error: %s %s is not in the user messages. Copy a few words of the text exactly, as they stand there."
            return call, told % (name, fmt.quoted(first)), False
        some = call[call.index('{"start') : call.index(first) + rng.randint(1, len(first))]
        some += some[-rng.randint(1, 4) :] * rng.choice((rng.randint(20, 200), rng.randint(200, 900)))
        told = fmt.malformed("fragment_context", some)
        return call[: call.index('{"start')] + some + "}\n</tool_call>", told, True

    def _misquoted(self, rng, mark, text):
        """Nearly a marker, and nowhere in `text`: begun and gone on with otherwise, or with a part said twice or left out."""
        while True:
            a, b = sorted(rng.randint(0, len(mark)) for _ in range(2))
            said = mark[:a] + rng.choice((mark[b:], mark[a:b] + mark[a:], self._some(rng, 1, 4), mark[a:] + mark[-1:], fmt.SENTENCE[rng.randint(0, 15) :]))
            if said.strip() and said not in text and not set('"\\') & set(said):
                return said

    def _cut(self, talk, rng, marks, first, last, noted):
        """The calls that cut and fold, with the places of the markers."""
        count, right = self.maker._number(noted)
        idents = self.maker._ids(count)
        head, rest = fmt.render_call(fmt.cut_call(count, marks)).split(marks[0])
        middle, rest = rest.split(marks[1])
        lead, tail = rest.split(str(count))
        parts = [(head, 2, None), (marks[0], 1, first), (middle, 1, None), (marks[1], 1, last), (lead, 1, None), (str(count), 4 * right, None)]
        talk.assistant([*parts, (tail + fmt.END, 1, None)])
        start = len(talk.text) + len(fmt.START + "tool\n")
        result = fmt.cut_result(2, idents, round(noted * 1000 / count))
        talk.say(fmt.START + "tool\n" + result + fmt.END + "\n")
        if count > 1:
            parts = [(fmt.FOLD_OPEN, 1, None)]
            for n, ident in enumerate(idents[:-1]):
                parts += [(ident, 1 if n else 4, start + result.index(ident)), (fmt.FOLD_NEXT if n + 2 < count else fmt.FOLD_CLOSE, 1, None)]
            talk.assistant([*parts, (fmt.END, 1, None)])

    def _greeting(self, talk, rng):
        said, answer = chat.exchange(rng, self.words)
        talk.user(said)
        talk.assistant([(answer + fmt.END, GUESS, None)])

    def _stream(self, talk, rng, known, count, again):
        updates = rng.randint(1, 8 if count > 4 else 5)
        while count * updates > 160:
            updates -= 1
        made = self._made(rng, count, updates)
        if again and known:  # some keys of the stream before
            old = rng.sample(list(known), min(len(known), rng.randint(1, count)))
            renamed = dict(zip(made.order, old))
            made = made._replace(order=list(dict.fromkeys(renamed.get(k, k) for k in made.order)), pairs=[(renamed.get(k, k), v) for k, v in made.pairs])
        asked = made.order if rng.random() < 0.6 else rng.sample(made.order, rng.randint(1, len(made.order)))
        own = rng.random() < OWN
        listed = ", ".join(made.order)
        if own:
            opening, marks, between, named, item = fmt.INTRO + str(len(made.order)) + " keys: " + listed + fmt.RULES, (fmt.START_MARKER, fmt.END_MARKER), "; ", ": ", ""
            if rng.random() < SEPARATED:
                between = _chosen(rng, PLACED)
        else:
            frame = rng.choice(FRAMES).format(n=len(made.order), keys=listed)
            if rng.random() < WORDED:
                frame = self._some(rng, 0, 8) + " " + listed + self._some(rng, 0, 8, " ") + rng.choice(".:!,?") if rng.random() < 0.4 else self._chatter(rng)
                frame = frame + " " + self._chatter(rng) if rng.random() < 0.3 else frame
            elif rng.random() < 0.2:
                frame = self._chatter(rng) + " " + frame
            opening = "" if rng.random() < 0.2 else frame + rng.choice(("\n\n", "\n\n", "\n", " "))
            marks = rng.choice(MARKS) if rng.random() < 0.4 else self._marks(rng)
            between, named = _chosen(rng, PLACED), _chosen(rng, NAMED)
            item = rng.choice(ITEMS) if "\n" in between else ""
        text = opening + (marks[0] + rng.choice(("\n", "\n", " ") if not own else ("\n",)) if marks[0] else "")
        start = talk.user_open()
        at, places = len(text), []
        body = []
        for key, value in made.pairs:
            piece = item + key + named + value
            places.append((key, value, at + len(item), at + len(item) + len(key) + len(named)))
            body.append(piece)
            at += len(piece) + len(between)
        text += between.join(body)
        if between[0] in ";." and (own or rng.random() < 0.8):
            text += between[0]
        text += rng.choice(("\n\n", "\n", " ")) if not own else "\n\n"
        text += marks[1] + (" " if marks[1] else "")
        apart = not own and rng.random() < 0.15  # the question comes in a message of its own
        if apart:
            talk.user_close(text.rstrip())
            talk.assistant([(chat.UNKNOWN + chat.ABOUT + fmt.END, 0, None)])
            begin, text = talk.user_open(), ""
        else:
            begin = start
        question = self._question(rng, asked, own)
        keyed = {key: begin + len(text) + place for key, place in question.at}
        talk.user_close(text + question.text)
        for key, value, _, place in places:
            known[key] = (value, start + place)
        talk.steps += [start + place for *_, place in places]
        self._answer(talk, rng, [(key, keyed[key]) for key in asked], known)

    def _question(self, rng, keys, own):
        form = rng.choice(ONE if len(keys) == 1 and rng.random() < 0.7 else MANY)
        head, tail = (fmt.QUESTION[1:] + " {keys}", fmt.FORM) if own else (form, rng.choice(ENDS))
        before, after = head.split("{keys}")
        if not own and rng.random() < WORDED:  # where the list begins and ends is told by the stream alone
            before, after = (self._some(rng, 0, 12) + " ").lstrip(), self._some(rng, 0, 7, " ") + rng.choice("?????.!:")
        if not own and rng.random() < 0.2:
            before = self._chatter(rng) + " " + before
        joins = [", "] * (len(keys) - 1)
        if joins and not own and rng.random() < 0.3:
            joins[-1] = rng.choice((" and ", ", and "))
        text, at = before, []
        for key, join in zip(keys, [*joins, ""]):
            at.append((key, len(text)))
            text += key + join
        return Asked(text + after + tail, at)

    def _follow_up(self, talk, rng, known):
        keys = rng.sample(list(known), min(len(known), rng.choice((1, 1, 1, 2, 3))))
        question = self._question(rng, keys, False)
        begin = talk.user_open()
        talk.user_close(question.text)
        self._answer(talk, rng, [(key, begin + place) for key, place in question.at], known)

    @staticmethod
    def _answer(talk, rng, keys, known):
        parts = []
        for n, (key, place) in enumerate(keys):
            value, stands = known[key]
            parts += [("\n" * (n > 0) + fmt.SENTENCE + " ", 1, None), (key, 1, place), (" is ", 1, None), (value, 1, stands), (".", 1, None)]
        talk.assistant([*parts, (fmt.END, 1, None)])

    def _made(self, rng, count, updates):
        """A stream whose words are known, made up, or some of both."""
        share = rng.choice((0, 0, KNOWN, 1))
        keys = [self._key(rng, share) for _ in range(count)]
        keys = list(dict.fromkeys(keys))
        while len(keys) < count:
            keys = list(dict.fromkeys([*keys, self._word(rng)]))
        values = []
        for _ in range(3 * count * updates):
            values.append(self._value(rng, share))
        values = list(dict.fromkeys(v for v in values if v not in keys))
        while len(values) < count * updates:
            values = list(dict.fromkeys([*values, self._word(rng) + " " + self._word(rng)]))
        return make_stream(_Words(keys, values), rng, count, updates)

    def _word(self, rng):
        return self.speller.made_up(rng, 1)[0]

    def _key(self, rng, share):
        if rng.random() < share:
            return rng.choice(self.words.keys)
        word = self._word(rng)
        word = word + " " + self._word(rng) if rng.random() < TWO else word
        return word[:1].upper() + word[1:] if rng.random() < 0.1 else word

    def _value(self, rng, share):
        if rng.random() < share:
            return rng.choice(self.words.first) + rng.choice(self.words.second)
        chance = rng.random()
        if chance < 0.12:
            return str(rng.randrange(10 ** rng.randint(1, 5)))
        word = self._word(rng)
        if chance < 0.12 + TWO:
            word += rng.choice((" ", " ", "-")) + self._word(rng)
        return word.title() if rng.random() < 0.15 else word

    def _chatter(self, rng, most=3):
        """Some sentences of random words."""
        return " ".join(_begun(self._some(rng, 3, 14)) + rng.choice("...:!") for _ in range(rng.randint(1, most)))

    def _some(self, rng, least, most, before=""):
        """Random words, some of them made up; `before`, if there is any."""
        some = [rng.choice(PLAIN_WORDS) if rng.random() < 0.75 else self._word(rng) for _ in range(rng.randint(least, most))]
        return before + " ".join(some) if some else ""

    def _marks(self, rng):
        """What a stream stands between: of the list, sentences of random words, or titles, tags and signs. Each can be quoted in a call as it stands."""
        while True:
            chance = rng.random()
            if chance < 0.3:
                start, end = rng.choice([pair for pair in MARKS if pair[0]])
            elif chance < 0.55:
                start, end = (self._chatter(rng, 1) for _ in range(2))
                end = self._like(rng, start) if rng.random() < ALIKE else end
            elif chance < 0.75:
                form = rng.choice(("<{}>", "[{}]", "{{{}}}", "({})", "## {}", "# {}", "{}:", "{}", "- {} -", "'{}'", "{}...", "1. {}"))
                start, end = form.format(self._title(rng)), form.format(self._title(rng))
                if rng.random() < 0.4:
                    end = start[:1] + "/" + start[1:] if start[0] in "<[{(" else rng.choice(("end of ", "End of ", "END ", "/", "no more ")) + start
            else:
                row = rng.choice(("", "", " ")).join(rng.choice(SIGNS) * rng.randint(1, 6))
                start, end = (self._title(rng) for _ in range(2)) if rng.random() < 0.8 else ("begin", "end")
                start, end = (row + " " + text + (" " + row if rng.random() < 0.5 else "") for text in (start, end))
            if min(len(start), len(end)) > 2 and not (start in end or end in start or set('"\\') & set(start + end)):
                if all(mark not in fmt.render_call(fmt.cut_call(9, ("", ""))) for mark in (start, end)):
                    return start, end

    def _like(self, rng, text):
        """A sentence that has a stretch of words, at least two where there are, in common with another one: what follows a word does not say in which of them it stands."""
        words, sign = text[:-1].split(), text[-1]
        count = rng.randint(min(2, len(words)), len(words))
        first = rng.randint(0, len(words) - count)
        kept = " ".join(words[first : first + count])
        made = (self._some(rng, 0, 5) + " ").lstrip() + kept + self._some(rng, 0, 5, " ")
        return _begun(made) + (sign if rng.random() < 0.5 else rng.choice("...:!"))

    def _title(self, rng):
        text = self._some(rng, 1, 3)
        return rng.choice((text, text.upper(), text.title(), _begun(text)))


class _Words(NamedTuple):
    keys: list
    values: list


class Stretch(int):
    """A place from which more than a word is taken as it stands there."""


class Led(Stretch):
    """The same, but the first token is told where it stands in other letters, or split otherwise (`by`): after that the rest of it is found. Where it stands
    nowhere else (`place` is None) only the first one is told."""

    def __new__(cls, place, by):
        made = super().__new__(cls, by if place is None else place)
        made.by, made.alone = by, place is None
        return made


class Hint(int):
    """The place of what decides what is said, and is not what is said."""


class Talk:
    """A conversation as text, with what is learned of it and where that stands before."""

    def __init__(self):
        self.text, self.learned = "", []  # (first, behind the last, weight, the place it comes from)
        self.left_out = []  # (place, how many positions are left out before it)
        self.steps, self.pointed = [], []  # places whose token looks at the one before it; and pairs, of which the first one's looks at the other's

    def say(self, text):
        self.text += text

    def leave_out(self, positions):
        """As if so many tokens stood here."""
        self.left_out.append((len(self.text), positions))

    def user_open(self):
        self.say(fmt.START + "user\n")
        return len(self.text)

    def user_close(self, text):
        self.say(text + fmt.END + "\n")

    def user(self, text):
        self.user_open()
        self.user_close(text)

    def next(self, head=""):
        """Where what the assistant says next begins, behind its `head`."""
        return len(self.text) + len(fmt.START + "assistant\n" + head)

    def assistant(self, parts):
        """@returns where each part begins"""
        self.say(fmt.START + "assistant\n")
        begins = []
        for text, weight, place in parts:
            begins.append(len(self.text))
            if weight:
                self.learned.append((len(self.text), len(self.text) + len(text), weight, place))
            self.say(text)
        self.say("\n")
        return begins

    def sample(self, tokenizer, kind):
        ids, starts = tokenizer.spelled(self.text)
        at = {start: n for n, start in enumerate(starts)}
        weights, looks, steps, hints = np.zeros(len(ids), np.float32), [], [], []
        begins = np.array(starts)
        # A token that begins with the space before a word begins there.
        find = lambda place: at.get(place, at.get(place - 1) if self.text[place - 1 : place] == " " else None)  # noqa: E731
        holds = lambda place: int(np.searchsorted(begins, place, "right")) - 1  # noqa: E731
        for first, last, weight, place in self.learned:
            low, high = np.searchsorted(begins, (first, last))
            weights[low:high] = weight
            if place is None:
                continue
            own, source = find(first), find(place)
            if own is None or source is None:
                continue
            weights[own] = weight
            if isinstance(place, Hint):
                hints.append((own, source))
                continue
            letter = lambda n: self.text[starts[n] : starts[n] + 1]  # noqa: E731
            led = isinstance(place, Led)
            if led:
                looks.append((own, find(place.by)))
                if place.alone:
                    continue
            size = 1
            while starts[own + size] < last and letter(own + size) == letter(source + size):
                size += 1
            looks += [(own + n, source + n) for n in range(led, size)]
            if not led and letter(own - 1) == letter(source - 1) == " " and starts[own] - starts[own - 1] == starts[source] - starts[source - 1] == 1:
                looks.append((own - 1, source - 1))  # a space that is a token of its own
            if size > 2 and not isinstance(place, Stretch):  # those within a word, at what stands before it
                steps += [pair for i in range(1, size) for pair in ((own + i - 1, own - 1), (source + i, source - 1))]
        for place in self.steps:
            n = find(place)
            if n:
                steps.append((n, n - 1))
        steps += [(holds(a), holds(b)) for a, b in self.pointed]
        looks = [(a, b) for a, b in looks if b < a]
        steps = sorted({(a, b) for a, b in steps if b <= a})
        positions = np.arange(len(ids))
        for place, count in self.left_out:
            positions[int(np.searchsorted(begins, place)) :] += count
        return Sample(kind, np.array(ids), positions, weights, pairs(sorted(set(looks))), pairs(steps), pairs(hints))


def _begun(text):
    return text[0].upper() + text[1:]


def _chosen(rng, shares):
    return rng.choices(list(shares), list(shares.values()))[0]
