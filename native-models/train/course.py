"""What is trained when: first the streams, from nothing; then everything, by a larger model that the first one has grown into; then all of
it again, with heads for long passages; then once more and for longest, by a model that is wider still; and then what visitors ask; and then tools that come and go.

A mix is kept by counting: every step adds samples of the kind that is furthest below its share of all tokens so far.
"""
from .data import MOST_FRAGMENTS, OFTEN, READ, Sample
from .going_back import GoingBack
from .managing import Managing
from .trajectories import Trajectories
from .visits import Visits

STAGES = [(4, 2), (8, 4), (16, 6), (24, 8), (46, 8)]  # keys, most updates of a key
LONG = 66  # updates of a key, at most, in prompts whose values are not learned
COLLECTED = "needles", "similar", "orders"  # by the runtime
CUTS = 0.6, 0.12  # of the calls before a fold: drills, and those after long streams


class Streams:
    """Plain prompts get half, so that the comparison with and without tools is one between equally trained skills."""

    name = "streams"
    share = {"plain": 0.50, "cut": 0.24, "folded": 0.18, "ids": 0.05, "noise": 0.03}
    tokens, peak, alike = 4.4e6, 2e-3, 0.0
    look = 0.0  # how much it counts where attention looks
    limit = 1.5e5  # tokens after which a stage ends in any case

    def __init__(self):
        self.stage, self.score, self.spent = 0, 0.0, 0

    def progress(self):
        return {"stage": self.stage, "score": self.score, "spent": self.spent}

    def learned(self, scores, tokens):
        """The next stage starts when plain prompts of this one are read to 90 %."""
        good, count = scores.get("plain", (0, 0))
        if not count:
            return
        self.score += 0.05 * (good / count - self.score)
        self.spent += tokens
        if self.stage + 1 < len(STAGES) and (self.score > 0.9 or self.spent > self.limit):
            self.stage, self.score, self.spent = self.stage + 1, 0.5, 0

    def said(self):
        return "stage %dx%d" % STAGES[self.stage]

    def draw(self, kind, maker, done):
        """A sample. `done`: the share of the course that is behind."""
        return stream(kind, maker, self.stage, *CUTS)


class Everything:
    """Streams go on beside what is new; half of what is read is short, and what is long comes late."""

    name = "everything"
    share = {
        "plain": 0.14, "cut": 0.12, "folded": 0.10, "ids": 0.05, "noise": 0.01, "unseen": 0.04,
        "needles": 0.26, "needles-plain": 0.03, "similar": 0.20, "similar-plain": 0.03, "chat": 0.02,
    }  # fmt: skip
    tokens, peak, alike, look = 3.6e6, 1.5e-3, 0.3, 0.0
    steps = (0.2, 500), (0.4, 1000), (0.6, 2000)  # up to which share of the course texts are at most so long
    cuts = CUTS
    spelled = 5  # updates of a key, at most, in streams of made-up words
    reordered = 0.0  # of the plain streams: how many ask for keys that stand together
    renamed = 0.0
    rarer = None  # how much less often long texts are read, as a power of their length; default: by kind
    alone = 0.4, 0.6, 0.4  # up to which share of the course how many go without their text, and how many after

    def __init__(self, folder, vocabulary):
        self.read = {kind: Trajectories(folder, kind, vocabulary, self.rarer) for kind in self.share if kind.split("-")[0] in COLLECTED}

    def progress(self):
        return {}

    def learned(self, scores, tokens):
        pass

    def said(self):
        return ""

    def draw(self, kind, maker, done):
        rng = maker.rng
        if kind in self.read:
            longest = next((length for until, length in self.steps if done < until), 8000)
            until, first, later = self.alone
            short = 0 if kind.endswith("plain") else first if done < until else later
            word = maker.name if kind.startswith("needles") and rng.random() < self.renamed else None
            return Sample(kind, *self.read[kind].draw(rng, longest, short, word))
        if kind == "chat":
            return maker.chat()
        if kind == "unseen":
            keys, chance = rng.choice((4, 8, 16, 24, 46, 46)), rng.random()
            if self.spelled > READ and chance < 0.2:
                return maker.unseen_cut(46, rng.randint(2, self.spelled)) if chance < 0.08 else maker.unseen(46, rng.randint(READ + 1, self.spelled), True)
            return maker.unseen(keys, rng.randint(1, min(READ, self.spelled)), chance < 0.6)
        if kind == "summary":
            keys, n = rng.choice(STAGES[1:])
            n = rng.randint(1, n)
            return maker.summary(min(keys, 24), n) if rng.random() < 0.5 else maker.summarised(keys, max(n, 2))
        if kind == "often":
            return maker.often(rng.choice((4, 8, 12)), round(between(rng, READ + 1, OFTEN)))
        if kind == "plain" and rng.random() < self.reordered:
            return maker.reordered(*rng.choice(STAGES[2:]))
        return stream(kind, maker, len(STAGES) - 1, *self.cuts)


class Passages(Everything):
    """The same, once there is a head for long passages."""

    name = "passages"
    share = {
        "plain": 0.13, "cut": 0.155, "folded": 0.11, "ids": 0.03, "noise": 0.01, "unseen": 0.05,
        "needles": 0.21, "needles-plain": 0.005, "similar": 0.285, "similar-plain": 0.005, "chat": 0.01,
    }  # fmt: skip
    tokens, peak = 3.45e6, 1.2e-3
    steps = (0.1, 1000), (0.3, 2000)
    alone = 0.3, 0.5, 0.35
    cuts = 0.4, 0.35
    fitted = 160  # trajectories of each length


class Wider(Everything):
    """All of it once more, longer: with the wider model, longer streams of made-up words, and streams that have to be restored."""

    name = "wider"
    share = {
        "plain": 0.08, "cut": 0.10, "folded": 0.07, "ids": 0.02, "noise": 0.03, "unseen": 0.26, "orders": 0.055, "summary": 0.02,
        "needles": 0.10, "needles-plain": 0.005, "similar": 0.245, "similar-plain": 0.005, "chat": 0.01,
    }  # fmt: skip
    tokens, peak, look = 45e6, 1.2e-3, 0.5
    steps = (0.05, 1000), (0.15, 2000)
    alone = 0.3, 0.3, 0.2
    cuts = 0.3, 0.45
    fitted = 100  # trajectories of each length
    spelled = 20  # updates of a key; none is read from more than `READ`
    reordered = 0.12


class Visiting(Wider):
    """The same model goes on: what visitors ask, and tools that come and go, beside all that it knows."""

    name = "visiting"
    share = {
        "plain": 0.04, "cut": 0.05, "folded": 0.05, "ids": 0.015, "noise": 0.015, "unseen": 0.165, "orders": 0.035, "summary": 0.015,
        "needles": 0.055, "needles-plain": 0.025, "similar": 0.12, "similar-plain": 0.025, "chat": 0.015, "visits": 0.12, "marked": 0.145, "memtool": 0.11,
    }  # fmt: skip
    tokens, peak = 36e6, 6e-4
    steps = (0.0, 0), (0.0, 0)  # texts of every length from the beginning
    rarer = 0.9
    cuts = 0.5, 0.2
    spelled = 20
    renamed = 0.4  # of the chains of relatives: how many have names that are in no list

    def draw(self, kind, maker, done):
        if kind == "memtool":
            return Managing(maker).draw()
        if kind == "back":
            return GoingBack(maker).draw()
        if kind in ("visits", "marked"):
            visits = Visits(maker)
            return visits.draw() if kind == "visits" else visits.marked()
        return super().draw(kind, maker, done)


class Tools(Visiting):
    """And once more, a third of it tools that come and go, and drills of going back and of many updates; what that wears off gets more than its share."""

    name = "tools"
    share = {
        "plain": 0.037, "cut": 0.032, "folded": 0.035, "ids": 0.008, "noise": 0.009, "unseen": 0.097, "orders": 0.026, "summary": 0.01,
        "needles": 0.067, "needles-plain": 0.013, "similar": 0.069, "similar-plain": 0.013, "chat": 0.008, "visits": 0.08, "marked": 0.125, "memtool": 0.321, "back": 0.043,
        "often": 0.006,
    }  # fmt: skip
    tokens = 38e6
    renamed = 0.8


COURSES = {course.name: course for course in (Streams, Everything, Passages, Wider, Visiting, Tools)}  # in order
LAST = Tools


def before(course):
    """The course whose model this one begins with; None: it is the first."""
    courses = [None, *COURSES.values()]
    return courses[list(COURSES).index(course.name)]


def stream(kind, maker, stage, drilled, long):
    rng, chance = maker.rng, maker.rng.random()
    keys, most = STAGES[stage if rng.random() > 0.25 else rng.randrange(stage + 1)]
    n = rng.randint(2, most)
    late = stage + 1 == len(STAGES)  # long prompts once short ones are read
    if kind == "ids":
        return maker.ids(rng.randint(2, MOST_FRAGMENTS)) if chance < 0.5 else maker.number()
    if kind == "noise":
        return maker.noise(rng.randint(8, 120))
    if kind == "plain":
        if late and chance < 0.03:
            return maker.plain(46, round(between(rng, READ + 1, LONG)))
        return maker.plain(keys, n, asked=1 if chance < 0.15 else None)
    if kind == "folded":
        return maker.folded(46, round(between(rng, READ + 1, LONG)), True) if late and chance < 0.7 else maker.folded(keys, n, False)
    if chance < drilled:
        return maker.drill()
    if late and chance < drilled + long:  # ids have to be found among thousands of other tokens
        return maker.cut(46, rng.randint(READ + 1, LONG))
    return maker.cut(keys, n)


def between(rng, low, high):
    """A number that is as likely between 8 and 16 as between 16 and 32."""
    return low * (high / low) ** rng.random()
