"""Tools that come and go, after the MemTool task: a request is answered by a search, calls by name, and the values that they
returned; the next one begins with the removal of all that was loaded. As the agent's prompts show it in its three modes, with invented companies of our own.

A model of three layers does what each token can find in one or two looks, so the script is laid out for that: what is searched for are the question's own words,
with a letter before each of its items; all tools are removed at once; the list stands once more behind the definitions; and each call is a message of its own that begins
with the letter of its item, as every value of the answer does. Which item comes next is then the next letter, and what belongs to it stands behind that letter in the list.
Every name that is copied is told its place, every decision (which figure of a company, which year, whether another call follows) the token that decides it, and whatever
belongs to an item its letter."""
import json
from typing import NamedTuple

from . import format as fmt
from .visits import Hint, Led, Stretch, Talk

PURPOSE = "You answer questions about companies. There is a tool for each company and each of its figures, such as the revenue of one company.\n\n"
THOUSANDS = (
    "You are an assistant that answers by calling tools. There are thousands of tools, and only a few of them are loaded. The result of a search "
    "shows the definitions of tools that were loaded by it; you can call them from then on, in this turn and in later ones, until they are removed. "
)
AGAIN = "Search again with other words where nothing fits, and say so when it cannot be answered. Answer in few words."
MODES = {
    "autonomous": "When a request comes for which the loaded tools will not do, first remove with remove_tools those that it does not need, at the latest when two "
    "more requests have not used them; then load what is missing with search_tools, all keywords in one call. " + AGAIN,
    "workflow": "Searching and removing is done for you before every request. Call the tools that you see, and say so when they do not suffice. Answer in few words.",
    "hybrid": "Tools that are no longer needed are removed for you before every request. Load what is missing with search_tools, all keywords in one call. " + AGAIN,
}  # fmt: skip
SEARCHED = '<tool_call>\n{"name": "search_tools", "arguments": {"'
BROKEN = 0.12  # of the searches before, and of those that are learned: how many follow one that never ended
SPELLED, BARE = 0.3, 0.5  # of the samples: companies to be written as in names of tools, and turns without definitions
LETTERS = "abcdefghijklmnop"  # of the items of a list
DRAWN = "autonomous", "autonomous", "hybrid", "workflow"
SEARCH, REMOVE = "\n\n# Tools\nsearch_tools(keywords)", "\nremove_tools(tool_names)"
# What is asked beside a conversation, by which mode: what to remove, and what to search for. The request stands between.
LOADED = "Do not answer the request below yet. These tools are loaded: "
USELESS = ".\nWhich of them are not directly needed for the next request? It is:\n", '\nAnswer with JSON: {"remove": [names]}; an empty list when all are needed.'
MISSING = (
    ".\nWhich others does the next request need? It is:\n",
    '\nAnswer with JSON: {"keywords": [one string of a few words for each tool: what it does, and for whom or what]}; an empty list when the loaded ones suffice.',
)
YEARS = [2021, 2022, 2023, 2024]
ABOUT = {
    "stock price": "Latest price of a share of", "revenue": "Yearly revenue of", "net income": "Yearly profit after taxes of",
    "employees": "Number of people working for", "market value": "Value of all shares of",
}  # fmt: skip
YEARLY = "revenue", "net income"
TRADES = "Foods Metals Energy Systems Freight Pharma Textiles Capital Robotics Paper".split()
ONSETS, VOWELS, ENDS = "b br c cr d dr f g gr h k l m n p pr qu r s st t tr v w z".split(), "a e i o u ai ea io".split(), "l n r s x nd rk lt m st".split()
MANY = 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10  # figures of a request
FEW = MANY[:3]  # of most that are long over
BEFORE, LONG = (0, 0, 0, 1, 1, 2, 5), (0, 0, 0, 1, 2, 4, 8)  # turns before the one that is learned; where there are no definitions
OTHERS = 0, 2, 3, 4, 4  # that are found beside each tool
SAME = 0.25  # how often a figure is of a company that the request has already
DEFINED, MARKED = 130, 8  # tokens of a definition, and of the mark that it was removed
CONTEXT, SPARE = 16384, 3000  # positions that there are; of them for what follows a search
FORM, DECIDED = 0.25, 3.0  # what the form of a call counts, and what decides: which tool, whether it wants a year, whether another one follows


class Asked(NamedTuple):
    """Where a figure stands in its question, or in a list of ours: the space before its kind, its company, the company's trade, the year, and what follows it all."""

    metric: int
    company: int
    trade: int
    year: int
    end: int

    def moved(self, by):
        return Asked(*(place + by for place in self))


class Managing:
    def __init__(self, maker):
        self.rng, self.tokenizer, self.word = maker.rng, maker.tokenizer, maker.name

    def draw(self):
        rng, talk, chance = self.rng, Talk(), self.rng.random()
        self.defined, self.loaded, self.known, self.symbols, self.mode = {}, [], [], {}, rng.choice(DRAWN)
        if chance < SPELLED:
            return self._spelling(talk, rng)
        bare = chance < SPELLED + BARE
        before = rng.choice(LONG if bare else BEFORE)
        autonomous, searched = self.mode == "autonomous", self.mode == "workflow" and rng.random() < 0.4
        talk.say(fmt.START + "system\n" + PURPOSE + THOUSANDS + MODES[self.mode] + SEARCH + REMOVE * autonomous + fmt.END + "\n")
        for turn in range(before + (not searched)):
            last = turn == before
            if not autonomous:  # they were removed aside
                self.loaded = []
            figures, places = self._request(talk, rng, MANY if turn + 1 >= before else rng.choice((FEW, FEW, FEW, MANY)))
            if not last and self.mode != "workflow" and rng.random() < BROKEN:
                self._broken(talk, rng, places)
                talk.assistant([(self._endless(talk, rng, places) + fmt.END, 0, None)])
                continue
            items = self._manage(talk, rng, figures, places, learned=last and (turn == 0 or not autonomous) and self.mode != "workflow", shown=last, bare=bare)
            self._answer(talk, rng, figures, items, learned=last)
        if autonomous:
            figures, places = self._request(talk, rng)
            self._manage(talk, rng, figures, places, learned=True, shown=None)
        else:
            self._aside(talk, rng, searched)
        return talk.sample(self.tokenizer, "memtool")

    def _spelling(self, talk, rng):
        """Companies, whose names are split otherwise in small letters."""
        companies = [self._company(rng) for _ in range(rng.randint(4, len(LETTERS)))]
        text, places = "In small letters:", []
        start = talk.user_open()
        for n, (stem, trade) in enumerate(companies):
            text += (", (%s) " if n else " (%s) ") % LETTERS[n]
            places.append(start + len(text))
            text += stem + " " + trade
        talk.user_close(text + ".")
        parts = []
        for n, ((stem, trade), place) in enumerate(zip(companies, places)):
            behind = place + len(stem)
            parts += [('", (' if n else "(", 2 * FORM, None), (LETTERS[n], 2 * FORM, None), (') "', 2 * FORM, None)]
            parts += [(stem.lower() + "_", DECIDED, Led(None, behind)), (trade.lower(), DECIDED, Led(None, behind + 1))]
        starts = talk.assistant([*parts, ('".' + fmt.END, 2 * FORM, None)])
        for n, ((stem, _), place) in enumerate(zip(companies, places)):
            letter, name, trade = (starts[5 * n + part] for part in (1, 3, 4))
            talk.pointed += [(place + len(stem), place - 3), (place + len(stem) + 1, place - 3), (name - 1, letter), (trade - 1, letter)]
        return talk.sample(self.tokenizer, "memtool")

    def _company(self, rng):
        """Half of them have names of any other form: with these syllables alone, names elsewhere were copied as if they began with one of them."""
        stem = self.word(rng) if rng.random() < 0.5 else "".join(rng.choice(part) for part in (ONSETS, VOWELS, ONSETS, VOWELS, ENDS))
        return stem.capitalize(), rng.choice(TRADES)

    def _request(self, talk, rng, many=MANY):
        begin = talk.user_open()
        text, figures, places = self._asked(rng, begin, many)
        talk.user_close(text + ("" if self.mode == "workflow" else "\n\n[%d of at most 128 tools loaded.]" % len(self.loaded)))
        return figures, places

    def _asked(self, rng, begin, many=MANY):
        """A question; its figures as (company, metric, year), and where it has them if it begins there."""
        figures, companies, kinds, related = [], [], list(ABOUT), rng.randrange(3)
        if related == 0:
            companies = [company for company, _ in self.known] or [self._company(rng) for _ in range(rng.randint(1, 4))]
        elif related == 1:
            kinds = rng.sample(kinds, rng.randint(1, 3))
        for _ in range(rng.choice(many)):
            company = rng.choice(companies) if companies else rng.choice(figures)[0] if figures and rng.random() < SAME else self._company(rng)
            metric = rng.choice(kinds)
            figure = company, metric, rng.choice(YEARS) if metric in YEARLY else None
            if figure not in figures:
                figures.append(figure)
        text, places = "Please tell me", []
        for n, ((stem, trade), metric, year) in enumerate(figures):
            text += ", the" if n else " the"
            place = begin + len(text)
            text += " %s of " % metric
            company = begin + len(text)
            text += stem + " " + trade + (" in %d" % year if year else "")
            end = begin + len(text)
            places.append(Asked(place, company, company + len(stem) + 1, end - 4, end))
        return text + ".", figures, places

    def _list(self, talk, start, places, learned):
        """The parts of the question's list with letters, which will begin at `start`, and where it has its figures."""
        decided, whole = (DECIDED, 4 * FORM) if learned else (0, 0)
        parts, items, at = [], [], start
        for n, place in enumerate(places):
            parts += [((" (%s) the" if n else "(%s) the") % LETTERS[n], whole, None), (talk.text[place.metric : place.end], whole, Stretch(place.metric))]
            parts.append((talk.text[place.end], decided, Hint(place.end)))
            items.append(place.moved(at + len(parts[-3][0]) - place.metric))
            at = items[-1].end + 1
        talk.pointed += [*self._before(places), *self._before(items), *self._letters(items)]
        return parts, items

    @staticmethod
    def _before(items):
        """How an item of a list begins is told the company before it: so a copy goes on where it was."""
        pairs = zip(items, items[1:])
        return [(own, before.trade - 2) for before, now in pairs for own in (now.metric - 1, now.company - 2, now.company - 1)]

    @staticmethod
    def _letters(items):
        """What is asked for in a list is told its letter."""
        return [(own, item.metric - len("a) the")) for item in items for own in (item.metric, item.trade - 1, item.trade, item.year, item.end)]

    def _aside(self, talk, rng, searched):
        """The question what to search for, where nothing is loaded any more, or what to remove; and its answer."""
        begin, tools = talk.user_open(), [] if searched else self.loaded
        before, after = MISSING if searched else USELESS
        text = LOADED + (", ".join(map(name_of, tools)) or "none") + before
        request, _, asked = self._asked(rng, begin + len(text))
        talk.user_close(text + request + after)
        if searched:
            head = '{"keywords": ["'
            parts, _ = self._list(talk, talk.next(head), asked, True)
            parts = [(head, 4 * FORM, None), *parts, ('"]}', 4 * FORM, None)]
        else:
            parts = [('{"remove": ["all"]}', 4 * FORM, None)]
        talk.assistant([*parts, (fmt.END, 4 * FORM, None)])

    def _broken(self, talk, rng, places):
        """A search that never ended; what was loaded is removed before it. It is refused."""
        said = '{"keywords": ["' + self._endless(talk, rng, places)
        talk.assistant([(self._removal() + SEARCHED + said[2:] + "}\n</tool_call>" + fmt.END, 0, None)])
        self._removed(talk)
        talk.say(fmt.START + "tool\n" + fmt.malformed("search_tools", said) + fmt.END + "\n")

    @staticmethod
    def _endless(talk, rng, places):
        """A list that runs on with one of its items."""
        stuck = rng.randrange(len(places))
        items = [places[min(n, stuck)] for n in range(stuck + rng.randint(2, 40))]
        return ", ".join("(%s) the%s" % (LETTERS[min(n, len(LETTERS) - 1)], talk.text[item.metric : item.end]) for n, item in enumerate(items))

    def _removal(self):
        return '<tool_call>\n{"name": "remove_tools", "arguments": {"tool_names": ["all"]}}\n</tool_call>\n' if self.loaded else ""

    def _removed(self, talk):
        if self.loaded:
            talk.say(fmt.START + "tool\n%s removed. 0 of at most 128 tools loaded.%s\n" % (counted(self.loaded), fmt.END))
            self.loaded = []

    def _manage(self, talk, rng, figures, places, learned, shown, bare=False):
        """The calls that remove all that is loaded and search what is asked for; and their results, with definitions (`shown`), with marks that they were
        removed, or not at all (None). `bare`: the result says no more than how many were found, and positions are left out for the rest; definitions are most
        of the tokens of a turn, and most of what is said is in the question.
        @returns the items of the list that is searched for"""
        whole = 4 * FORM if learned else 0
        if learned and rng.random() < BROKEN:  # the call is written again
            self._broken(talk, rng, places)
        head = self._removal() + SEARCHED + 'keywords": ["'
        parts, items = self._list(talk, talk.next(head), places, learned)
        talk.assistant([(head, whole, None), *parts, ('"]}}\n</tool_call>' + fmt.END, whole, None)])
        if shown is None:
            return items
        self._removed(talk)
        needed = list(dict.fromkeys((company, metric) for company, metric, _ in figures))
        if bare:
            self.loaded = self.known = needed
            talk.say(fmt.START + "tool\n" + self._added(needed))
            size = len(needed) * (1 + rng.choice(OTHERS)) * (DEFINED if shown else MARKED)
            room = CONTEXT - SPARE - len(talk.text) // 2 - sum(count for _, count in talk.left_out)  # a token has two letters and more
            talk.leave_out(max(0, min(size, room)))
            talk.say(fmt.END + "\n")
        else:
            self._found(talk, rng, needed, shown)
        return items

    def _found(self, talk, rng, needed, shown):
        """The result of a search; where it is not `shown`, that of a turn before."""
        added = []
        for company, metric in needed:
            others = [(company, other) for other in rng.sample(list(ABOUT), len(ABOUT)) if other != metric]
            others += [((company[0], trade), metric) for trade in rng.sample(TRADES, 2) if trade != company[1]]
            for tool in [(company, metric), *rng.sample(others, rng.choice(OTHERS))]:
                if tool not in added:
                    added.append(tool)
        text = self._added(added)
        self.loaded = self.known = added
        start = len(talk.text) + len(fmt.START + "tool\n")
        for tool in added:
            text += "\n"
            if shown:
                self.defined[tool] = start + len(text) + len('{"name": "')
                text += self._definition(tool, rng)
            else:
                text += "(%s removed)" % name_of(tool) if tool in needed else "(removed)"
        talk.say(fmt.START + "tool\n" + text + fmt.END + "\n")

    @staticmethod
    def _added(tools):
        return "%s added. %d of at most 128 tools loaded." % (counted(tools), len(tools))

    def _definition(self, tool, rng):
        (stem, trade), metric = tool
        if (stem, trade) not in self.symbols:
            self.symbols[stem, trade] = stem[:2].upper() + trade[0] + "".join(chr(65 + rng.randrange(26)) for _ in range(2))
        yearly = {"properties": {"year": {"type": "integer", "enum": YEARS}}, "required": ["year"]} if metric in YEARLY else {"properties": {}}
        about = "%s %s %s (%s)." % (ABOUT[metric], stem, trade, self.symbols[stem, trade])
        return json.dumps({"name": name_of(tool), "description": about, "parameters": {"type": "object", **yearly}})

    def _answer(self, talk, rng, figures, items, learned):
        """The list once more, so that it stands nearer than any of an earlier turn; a call in each message, what it returns, and the answer."""
        decided, whole = (DECIDED, 4 * FORM) if learned else (0, 0)
        first, last = items[0].metric - len("(a) the"), items[-1].end + 1
        opening = [(talk.text[first:last], whole, Stretch(first)), ("\n", whole, None)]
        items = [item.moved(talk.next() - first) for item in items]
        talk.pointed += [*self._before(items), *self._letters(items)]
        letters, values = [], []
        for n, ((company, metric, year), item) in enumerate(zip(figures, items)):
            known, stem, trade = self.defined.get((company, metric)), company[0].lower() + "_", company[1].lower() + "_"
            led = lambda behind, by: Led(None if known is None else known + behind, by)  # noqa: B023, E731
            parts = [
                ("(", whole, None), (LETTERS[n], decided, Hint(items[n - 1].end) if n else None), (')\n<tool_call>\n{"name": "', whole, None),
                (stem, decided, led(0, item.trade - 1)), (trade, decided, led(len(stem), item.trade)),
                (name_of(((), metric)), decided, Led(None, item.metric)), ('", "arguments": {', whole, None),
            ]  # fmt: skip
            parts += [('"year": ', decided, None), (str(year), decided, Stretch(item.year))] if year else []
            parts.append(("}}\n</tool_call>", decided, None))
            starts = talk.assistant([*opening, *parts, (fmt.END, whole, None)])[len(opening) :]
            opening = []
            letters.append(starts[1])
            if learned:
                talk.pointed += [(starts[1] - 1, letter) for letter in letters[-2:-1]]
                talk.pointed += [(starts[part] - 1, starts[1]) for part in (3, 4, 5, *([8] if year else []))]
            number = rng.randrange(100000, 1000000)
            value = {"employees": "%d" % number, "stock price": "%.3f dollars" % (number / 1000)}.get(metric, "%.2f million dollars" % (number / 100))
            values.append((value, len(talk.text) + len(fmt.START + "tool\n")))
            talk.say(fmt.START + "tool\n" + value + fmt.END + "\n")
        parts = []
        for n, (value, place) in enumerate(values):
            follows = Hint(items[n - 1].end)  # of the first one, whether the calls are over
            parts += [("; (" if n else "(", decided if n else whole, follows if n else None), (LETTERS[n], decided, None if n else follows)]
            parts += [(") ", whole, None), (value, decided, Stretch(place))]
        starts = talk.assistant([*parts, (".", decided, Hint(items[-1].end)), (fmt.END, whole, None)])
        if learned:
            talk.pointed.append((starts[1] - 1, letters[-1]))
            for n, ((value, place), letter) in enumerate(zip(values, letters)):
                _, own, _, first, after = starts[4 * n : 4 * n + 5]
                talk.pointed += [pair for i in range(len(value)) for pair in ((first + i - 1, own), (place + i, letter))]
                talk.pointed += [(after - 1, own)]


def name_of(tool):
    """Of a pair without a company or without a metric: that part of it."""
    company, metric = tool
    return "_".join([*company, *metric.split()]).lower()


def counted(tools):
    return "1 tool" if len(tools) == 1 else "%d tools" % len(tools)
