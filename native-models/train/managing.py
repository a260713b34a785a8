"""Tools that come and go, after the MemTool task: a request is answered by a search for each tool that is missing, calls by name, and the values that they
returned; the next one begins with the removal of what it does not need. As the autonomous agent's prompts show it, with invented companies of our
own; every name that is copied is told its place."""
import json

from . import format as fmt
from .visits import Talk

SYSTEM = (
    "You answer questions about companies. There is a tool for each company and each of its figures, such as the revenue of one company.\n\n"
    "You are an assistant that answers by calling tools. There are thousands of tools, and only a few of them are loaded. The result of a search "
    "shows the definitions of tools that were loaded by it; you can call them from then on, in this turn and in later ones, until they are removed. "
    "When a request comes for which the loaded tools will not do, first remove with remove_tools those that it does not need, at the latest when two "
    "more requests have not used them; then load what is missing with search_tools, all keywords in one call. Search again with other words where "
    "nothing fits, and say so when it cannot be answered. Answer in few words.\n\n# Tools\nsearch_tools(keywords)\nremove_tools(tool_names)"
)
YEARS = [2021, 2022, 2023, 2024]
ABOUT = {
    "stock price": "Latest price of a share of", "revenue": "Yearly revenue of", "net income": "Yearly profit after taxes of",
    "employees": "Number of people working for", "market value": "Value of all shares of",
}  # fmt: skip
YEARLY = "revenue", "net income"
TRADES = "Foods Metals Energy Systems Freight Pharma Textiles Capital Robotics Paper".split()
ONSETS, VOWELS, ENDS = "b br c cr d dr f g gr h k l m n p pr qu r s st t tr v w z".split(), "a e i o u ai ea io".split(), "l n r s x nd rk lt m st".split()
MOST = 4  # figures of a request
KEPT = 0.25  # how often a figure of a request is one whose tool is loaded
FORM = 0.25  # what the form of a call counts


class Managing:
    def __init__(self, maker):
        self.rng, self.tokenizer = maker.rng, maker.tokenizer

    def draw(self):
        rng, talk, before = self.rng, Talk(), self.rng.choice((0, 0, 0, 1, 1, 2))
        self.defined, self.loaded, self.symbols = {}, [], {}
        talk.say(fmt.START + "system\n" + SYSTEM + fmt.END + "\n")
        for turn in range(before + 1):
            last = turn == before
            figures, places = self._request(talk, rng)
            self._manage(talk, rng, figures, places, learned=turn == 0 and last, shown=last)
            self._answer(talk, rng, figures, places, learned=last)
        figures, places = self._request(talk, rng)
        self._manage(talk, rng, figures, places, learned=True, shown=None)
        return talk.sample(self.tokenizer, "memtool")

    def _company(self, rng):
        stem = "".join(rng.choice(part) for part in (ONSETS, VOWELS, ONSETS, VOWELS, ENDS))
        return stem.capitalize(), rng.choice(TRADES)

    def _request(self, talk, rng):
        """A question; its figures as (company, metric, year), and the places of what is said of each."""
        figures = []
        for _ in range(rng.randint(1, MOST)):
            if self.loaded and rng.random() < KEPT:
                company, metric = rng.choice(self.loaded)
            else:
                known = [company for company, *_ in figures]
                company = rng.choice(known) if known and rng.random() < 0.25 else self._company(rng)
                metric = rng.choice(list(ABOUT))
            figure = company, metric, rng.choice(YEARS) if metric in YEARLY else None
            if figure not in figures:
                figures.append(figure)
        begin = talk.user_open()
        text, places = "Please tell me the ", []
        for n, ((stem, trade), metric, year) in enumerate(figures):
            text += ", the " if n else ""
            place = begin + len(text)
            text += metric + " of "
            named = begin + len(text)
            text += stem + " " + trade
            dated = begin + len(text) + len(" in ")
            text += " in %d" % year if year else ""
            places.append((place, named, dated))
        talk.user_close(text + ".\n\n[%d of at most 128 tools loaded.]" % len(self.loaded))
        return figures, places

    def _manage(self, talk, rng, figures, places, learned, shown):
        """The calls that remove and search; their results with definitions (`shown`), with marks that they were removed, or not at all (None)."""
        needed = [(company, metric) for company, metric, _ in figures]
        useless = [tool for tool in self.loaded if tool not in needed]
        missing = [n for n, tool in enumerate(needed) if tool not in self.loaded and tool not in needed[:n]]
        calls, form = [], FORM if learned else 0
        if useless:
            calls.append([('<tool_call>\n{"name": "remove_tools", "arguments": {"tool_names": ["', 4 * form, None)])
            for n, tool in enumerate(useless):
                calls[-1] += [('", "' * (n > 0), 4 * form, None), (name_of(tool), 4 * form, self.defined.get(tool))]
            calls[-1].append(('"]}}\n</tool_call>', 4 * form, None))
        if missing:
            calls.append([('<tool_call>\n{"name": "search_tools", "arguments": {"keywords": ["', 4 * form, None)])
            for i, n in enumerate(missing):
                (stem, trade), metric = needed[n]
                calls[-1] += [('", "' * (i > 0), 4 * form, None), (stem + " " + trade, 4 * form, places[n][1]), (" ", form, None)]
                calls[-1].append((metric, 4 * form, places[n][0]))
            calls[-1].append(('"]}}\n</tool_call>', 4 * form, None))
        if not calls:
            return
        parts = [part for n, call in enumerate(calls) for part in ([("\n", 4 * form, None)] * (n > 0) + call)]
        talk.assistant([*parts, (fmt.END, 4 * form, None)])
        if shown is None:
            return
        if useless:
            self.loaded = [tool for tool in self.loaded if tool not in useless]
            text = "%s removed: %s. %d of at most 128 tools loaded." % (counted(useless), ", ".join(map(name_of, useless)), len(self.loaded))
            talk.say(fmt.START + "tool\n" + text + fmt.END + "\n")
        if missing:
            self._found(talk, rng, [needed[n] for n in missing], needed, shown)

    def _found(self, talk, rng, missing, needed, shown):
        """The result of a search; where it is not `shown`, that of a turn before."""
        added = []
        for company, metric in missing:
            others = [(company, other) for other in rng.sample(list(ABOUT), len(ABOUT)) if other != metric]
            others += [((company[0], trade), metric) for trade in rng.sample(TRADES, 2) if trade != company[1]]
            for tool in [(company, metric), *rng.sample(others, rng.randint(0, 4))]:
                if tool not in added and tool not in self.loaded:
                    added.append(tool)
        text = "%s added. %d of at most 128 tools loaded." % (counted(added), len(self.loaded) + len(added))
        self.loaded += added
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
        """The calls of a turn, what they return, and the answer."""
        parts, form = [], FORM if learned else 0
        for n, ((company, metric, year), (_, _, dated)) in enumerate(zip(figures, places)):
            parts += [("\n" * (n > 0) + '<tool_call>\n{"name": "', 4 * form, None)]
            parts += [(name_of((company, metric)), 4 * form, self.defined.get((company, metric))), ('", "arguments": {', 4 * form, None)]
            parts += [('"year": ', form, None), (str(year), 4 * form, dated)] if year else []
            parts += [("}}\n</tool_call>", 4 * form, None)]
        talk.assistant([*parts, (fmt.END, 4 * form, None)])
        answer = []
        for n, (_, metric, _) in enumerate(figures):
            number = rng.randrange(100000, 1000000)
            value = {"employees": "%d" % number, "stock price": "%.3f dollars" % (number / 1000)}.get(metric, "%.2f million dollars" % (number / 100))
            place = len(talk.text) + len(fmt.START + "tool\n")
            talk.say(fmt.START + "tool\n" + value + fmt.END + "\n")
            answer += [("; " * (n > 0), 4 * form, None), (value, 4 * form, place)]
        talk.assistant([*answer, (".", 4 * form, None), (fmt.END, 4 * form, None)])


def name_of(tool):
    (stem, trade), metric = tool
    return "_".join([stem, trade, *metric.split()]).lower()


def counted(tools):
    return "1 tool" if len(tools) == 1 else "%d tools" % len(tools)
