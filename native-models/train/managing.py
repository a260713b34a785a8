"""Tools that come and go, after the MemTool task: a request is answered by a search, calls by name, and the values that they
returned; the next one begins with the removal of all that was loaded. As the agent's prompts show it in its three modes, with invented companies of our own.

A model of three layers does what each token can find in one or two looks, so the script is laid out for that: what is searched for are the question's own words
up to the full stop, all tools are removed at once, and calls come in the order of the question. Every name that is copied is told its place, and every
decision (which figure of a company, whether it wants a year, whether another call follows) the token that decides it."""
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
MANY = 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 10  # figures of a request
KEPT, SAME = 0.25, 0.25  # how often a figure of a request is one that was there before; is of a company, or of a kind, that the request has already
FORM, DECIDED = 0.25, 2.0  # what the form of a call counts, and what decides: which tool, whether it wants a year, whether another one follows


class Asked(NamedTuple):
    """Where a figure stands in its question: the space before its kind, its company, what follows that, the year, and what follows it all."""

    metric: int
    company: int
    named: int
    year: int
    end: int


class Managing:
    def __init__(self, maker):
        self.rng, self.tokenizer = maker.rng, maker.tokenizer

    def draw(self):
        rng, talk, before = self.rng, Talk(), self.rng.choice((0, 0, 0, 1, 1, 2))
        self.defined, self.loaded, self.known, self.symbols, self.mode = {}, [], [], {}, rng.choice(DRAWN)
        autonomous, searched = self.mode == "autonomous", self.mode == "workflow" and rng.random() < 0.4
        talk.say(fmt.START + "system\n" + PURPOSE + THOUSANDS + MODES[self.mode] + SEARCH + REMOVE * autonomous + fmt.END + "\n")
        for turn in range(before + (not searched)):
            last = turn == before
            if not autonomous:  # they were removed aside
                self.loaded = []
            figures, places = self._request(talk, rng)
            self._manage(talk, rng, figures, places, learned=last and (turn == 0 or not autonomous) and self.mode != "workflow", shown=last)
            self._answer(talk, rng, figures, places, learned=last)
        if autonomous:
            figures, places = self._request(talk, rng)
            self._manage(talk, rng, figures, places, learned=True, shown=None)
        else:
            self._aside(talk, rng, searched)
        return talk.sample(self.tokenizer, "memtool")

    def _company(self, rng):
        stem = "".join(rng.choice(part) for part in (ONSETS, VOWELS, ONSETS, VOWELS, ENDS))
        return stem.capitalize(), rng.choice(TRADES)

    def _request(self, talk, rng):
        begin = talk.user_open()
        text, figures, places = self._asked(rng, begin)
        talk.user_close(text + ("" if self.mode == "workflow" else "\n\n[%d of at most 128 tools loaded.]" % len(self.loaded)))
        return figures, places

    def _asked(self, rng, begin):
        """A question; its figures as (company, metric, year), and where it has them if it begins there."""
        figures = []
        for _ in range(rng.choice(MANY)):
            if self.known and rng.random() < KEPT:
                company, metric = rng.choice(self.known)
            else:
                company = rng.choice(figures)[0] if figures and rng.random() < SAME else self._company(rng)
                metric = rng.choice(figures)[1] if figures and rng.random() < SAME else rng.choice(list(ABOUT))
            figure = company, metric, rng.choice(YEARS) if metric in YEARLY else None
            if figure not in figures:
                figures.append(figure)
        text, places = "Please tell me", []
        for n, ((stem, trade), metric, year) in enumerate(figures):
            text += ", the" if n else " the"
            place = begin + len(text)
            text += " %s of " % metric
            company = begin + len(text)
            text += stem + " " + trade
            named = begin + len(text)
            text += " in %d" % year if year else ""
            end = begin + len(text)
            places.append(Asked(place, company, named, end - 4, end))
        return text + ".", figures, places

    def _keywords(self, talk, places, decided, whole):
        """The question's list, commas and all: a search takes it apart there."""
        first, end = places[0].metric, places[-1].end
        return [("the", whole, None), (talk.text[first:end], whole, Stretch(first)), (talk.text[end], decided, end)]

    def _aside(self, talk, rng, searched):
        """The question what to search for, where nothing is loaded any more, or what to remove; and its answer."""
        begin, tools = talk.user_open(), [] if searched else self.loaded
        before, after = MISSING if searched else USELESS
        text = LOADED + (", ".join(map(name_of, tools)) or "none") + before
        request, _, asked = self._asked(rng, begin + len(text))
        talk.user_close(text + request + after)
        if searched:
            parts = [('{"keywords": ["', 4 * FORM, None), *self._keywords(talk, asked, DECIDED, 4 * FORM), ('"]}', 4 * FORM, None)]
        else:
            parts = [('{"remove": ["all"]}', 4 * FORM, None)]
        talk.assistant([*parts, (fmt.END, 4 * FORM, None)])

    def _manage(self, talk, rng, figures, places, learned, shown):
        """The calls that remove all that is loaded and search what is asked for; and their results, with definitions (`shown`), with marks that they were
        removed, or not at all (None)."""
        decided, whole = (DECIDED, 4 * FORM) if learned else (0, 0)
        parts, useless = [], self.loaded
        if useless:
            parts.append(('<tool_call>\n{"name": "remove_tools", "arguments": {"tool_names": ["all"]}}\n</tool_call>\n', whole, None))
        parts.append(('<tool_call>\n{"name": "search_tools", "arguments": {"keywords": ["', whole, None))
        parts += self._keywords(talk, places, decided, whole)
        parts.append(('"]}}\n</tool_call>', whole, None))
        talk.assistant([*parts, (fmt.END, whole, None)])
        if shown is None:
            return
        if useless:
            self.loaded = []
            text = "%s removed. 0 of at most 128 tools loaded." % counted(useless)
            talk.say(fmt.START + "tool\n" + text + fmt.END + "\n")
        needed = [(company, metric) for company, metric, _ in figures]
        self._found(talk, rng, list(dict.fromkeys(needed)), needed, shown)

    def _found(self, talk, rng, missing, needed, shown):
        """The result of a search; where it is not `shown`, that of a turn before."""
        added = []
        for company, metric in missing:
            others = [(company, other) for other in rng.sample(list(ABOUT), len(ABOUT)) if other != metric]
            others += [((company[0], trade), metric) for trade in rng.sample(TRADES, 2) if trade != company[1]]
            for tool in [(company, metric), *rng.sample(others, rng.randint(0, 4))]:
                if tool not in added:
                    added.append(tool)
        text = "%s added. %d of at most 128 tools loaded." % (counted(added), len(added))
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

    def _definition(self, tool, rng):
        (stem, trade), metric = tool
        if (stem, trade) not in self.symbols:
            self.symbols[stem, trade] = stem[:2].upper() + trade[0] + "".join(chr(65 + rng.randrange(26)) for _ in range(2))
        yearly = {"properties": {"year": {"type": "integer", "enum": YEARS}}, "required": ["year"]} if metric in YEARLY else {"properties": {}}
        about = "%s %s %s (%s)." % (ABOUT[metric], stem, trade, self.symbols[stem, trade])
        return json.dumps({"name": name_of(tool), "description": about, "parameters": {"type": "object", **yearly}})

    def _answer(self, talk, rng, figures, places, learned):
        """The calls of a turn, what they return, and the answer. What follows a company in the question has before it what is asked of it, and says itself whether
        there is a year; what follows the whole says whether there is another call, whose company is the next one in the question."""
        form, decided, whole = (FORM, DECIDED, 4 * FORM) if learned else (0, 0, 0)
        parts, named, by = [], [], {}  # by: the place that decides what a part is
        for n, ((company, metric, year), place) in enumerate(zip(figures, places)):
            stem, kind, known = name_of((company, "")) + "_", name_of(((), metric)), self.defined.get((company, metric))
            if n:
                by[len(parts)] = places[n - 1].end
                parts.append(("\n", decided, Hint(places[n - 1].end)))
            parts.append(('<tool_call>\n{"name": "', whole, None))
            named.append(len(parts))
            by[len(parts) + 1] = by[len(parts) + 3] = place.named
            parts += [(stem, decided, None if known is None else Led(known, place.company) if n else Stretch(known)), (kind, decided, Hint(place.named))]
            parts.append(('", "arguments": {', whole, None))
            parts += [('"year": ', decided, Hint(place.named)), (str(year), whole, place.year), ("}}\n</tool_call>", whole, None)] if year else []
            parts += [("}}\n</tool_call>", decided, Hint(place.named))] if not year else []
        by[len(parts)] = places[-1].end
        starts = talk.assistant([*parts, (fmt.END, decided, Hint(places[-1].end))])
        if learned:
            talk.pointed += [(starts[one] - 1, place) for one, place in by.items()]
            talk.pointed += [(starts[other] - 1, starts[one + 2] - 1) for one, other in zip(named, named[1:])]
        answer, values = [], []
        for n, (_, metric, _) in enumerate(figures):
            number = rng.randrange(100000, 1000000)
            value = {"employees": "%d" % number, "stock price": "%.3f dollars" % (number / 1000)}.get(metric, "%.2f million dollars" % (number / 100))
            place = len(talk.text) + len(fmt.START + "tool\n")
            talk.say(fmt.START + "tool\n" + value + fmt.END + "\n")
            follows = Hint(place + len(value + fmt.END + "\n" + fmt.START))
            answer += [(value, decided, Stretch(place)), ("; " if n + 1 < len(figures) else ".", decided, follows)]
            values.append((place, len(value)))
        starts = talk.assistant([*answer, (fmt.END, whole, None)])
        if learned:  # a value is the one that stands behind the one before
            for n, ((before, length), (place, size)) in enumerate(zip(values, values[1:])):
                ended, own = starts[2 * n + 1] - 1, starts[2 * n + 2]
                talk.pointed += [pair for i in range(size) for pair in ((own + i - 1, ended), (place + i, before + length - 1))]


def name_of(tool):
    """Of a pair without a company or without a metric: that part of it."""
    company, metric = tool
    return "_".join([*company, *metric.split()]).lower()


def counted(tools):
    return "1 tool" if len(tools) == 1 else "%d tools" % len(tools)
