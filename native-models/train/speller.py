"""Made-up words."""

ENDINGS, ENDED = ("s", "s", "s", "es", "ed", "ing", "er", "ers", "ly", "ion"), 0.25  # and how many words get one
# What names of many languages are made of.
BEGUN = (*"bcdfghjklmnpqrstvwxyz", *"hjkmnrstvyz", "ch", "sh", "th", "kh", "zh", "gh", "sz", "cz", "br", "dr", "gr", "kr", "pr", "sr", "st", "sk", "vl", "kw", "nk", "mb", "nd")
VOWELS = (*"aeiou", *"aeiou", *"aei", "y", "ai", "au", "ei", "ee", "ie", "ia", "io", "oe", "oo", "ou", "ua", "ui", "uo", "aa")
CLOSED = (*[""] * 12, *"hklmnrstvz", "ll", "nn", "ng", "nk", "rg", "rz", "ss", "sk", "st", "tt", "rt", "nd", "mp", "tz")
KIN = 0.3  # of the words: how many begin like one of the others


class Speller:
    """Makes words that are in no stream: syllables, letters that follow each other as in words, one word begun and another ended, words
    of the texts that are read, and what looks like names of other languages."""

    def __init__(self, words):
        self.keys, self.after = set(words.keys), {}
        self.known = sorted({w.lower() for w in [*words.keys, *words.second, *words.spaced] if len(w) > 2})
        self.read = sorted({w.lower() for w in words.spaced if len(w) > 2} - self.keys) or self.known
        for word in self.known:
            spelled = "  " + word + " "
            for n in range(2, len(spelled)):
                for last in spelled[n - 2 : n], spelled[n - 1]:
                    self.after.setdefault(last, []).append(spelled[n])

    def made_up(self, rng, count):
        made, ways = set(), (self._spelled, self._loose, self._syllables, self._joined, self._word, self._foreign)
        while len(made) < count:
            word = rng.choices(ways, (4, 6, 4, 4, 1, 6))[0](rng)
            if made and rng.random() < KIN:
                word = self._kin(rng, last, word)
            if rng.random() < ENDED:
                word += rng.choice(ENDINGS)
            if 3 <= len(word) <= 10 and word not in self.keys:
                made.add(word)
                last = word
        return rng.sample(sorted(made), count)

    def _spelled(self, rng, known=2):
        """Each letter by the `known` letters before it."""
        text = "  "
        while len(text) < 14:
            letter = rng.choice(self.after[text[-known:]])
            if letter == " ":
                break
            text += letter
        return text[2:]

    def _loose(self, rng):
        return self._spelled(rng, 1)

    def _joined(self, rng):
        begun, ended = rng.choice(self.known), rng.choice(self.known)
        return begun[: rng.randint(2, len(begun))] + ended[rng.randint(1, len(ended)) :]

    @staticmethod
    def _kin(rng, word, other):
        """One that begins as `word` does and ends as `other` does."""
        return word[: rng.randint(2, 4)] + other[rng.randint(1, 3) :]

    def _word(self, rng):
        return rng.choice(self.read)

    @staticmethod
    def _syllables(rng):
        ends = "", "n", "r", "s", "l", "t", "m"
        return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(ends) for _ in range(rng.randint(2, 3)))

    @staticmethod
    def _foreign(rng):
        """One that begins with a vowel or not, of one to four syllables."""
        begun = rng.choice(("", "", rng.choice(VOWELS)))
        return begun + "".join(rng.choice(BEGUN) + rng.choice(VOWELS) + rng.choice(CLOSED) for _ in range(rng.randint(1, 3)))
