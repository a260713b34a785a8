"""Writes sequence-matcher.json: what CPython's difflib says of pairs of strings. `python3 sequence-matcher.py` beside it.

A thousand pairs come from a small generator that the test has, too; adversarial ones are written out.
"""
import json
import os
import sys
from difflib import SequenceMatcher

# Few letters (much repeats), many (frequent ones are left out in long strings), and characters beyond 16 bits.
ALPHABETS = ["ab", "abc \n", "abcdefghijklmnopqrstuvwxyz ,.", "aaaabbc\U0001F600\U0001F680\u00e9\u4e2d"]


class Chance:
    """Numerical Recipes' 32-bit congruential generator; the upper 16 bits count."""

    def __init__(self, seed):
        self.state = seed & 0xFFFFFFFF

    def below(self, n):
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return (self.state >> 16) % n


def wide():
    return "".join(chr(0x100 + i) for i in range(150))


def pair(number):
    """Two strings of up to 700 characters; half of the second ones are the first with changes."""
    chance = Chance(number)
    alphabet = list((ALPHABETS + [wide()])[chance.below(5)])
    longest = [12, 80, 260, 700][chance.below(4)]

    def text(length):
        return [alphabet[chance.below(len(alphabet))] for _ in range(length)]

    a = text(chance.below(longest + 1))
    if chance.below(2) == 0:
        return "".join(a), "".join(text(chance.below(longest + 1)))
    b = list(a)
    for _ in range(chance.below(9)):
        at = chance.below(len(b) + 1)
        kind = chance.below(3)
        if kind == 0:
            b[at:at] = text(chance.below(20))
        elif kind == 1:
            del b[at : at + chance.below(30)]
        else:
            end = at + chance.below(40)
            b[at:end] = reversed(b[at:end])
    return ("".join(a), "".join(b)) if chance.below(2) == 0 else ("".join(b), "".join(a))


def adversarial():
    e199, e200 = "e" * 199, "e" * 200
    essay = "the quick brown fox jumps over the lazy dog while seven wizards box quietly. "
    yield "", ""
    yield "", "a"
    yield "a", ""
    yield "a", "a"
    yield "abc", "cba"
    yield "tide", "diet"
    yield "diet", "tide"
    yield "GESTALT PATTERN MATCHING", "GESTALT PRACTICE"
    # Around the length from which frequent characters are left out.
    yield e199, e199
    yield e200, e200
    yield e200, e199
    yield e199, e200
    yield e200 + "x", "x" + e200
    yield "x" + e200, e200 + "x"
    # 200 characters: two occurrences are allowed, a third makes one frequent.
    base = "".join(chr(0x400 + i) for i in range(198))
    yield base + "zz", base + "zz"
    yield "zz" + base, base + "zz"
    yield "zz" + base, base[:197] + "zzz"
    yield "zzz" + base, base[:197] + "zzz"
    # 300 characters: three are allowed.
    base = "".join(chr(0x400 + i) for i in range(296))
    yield "zzzz" + base, base + "zzzz"
    yield "zzz" + base, base + "qzzz"
    # Blocks that only grow through frequent characters.
    yield essay * 4, essay * 4
    yield essay * 4, ("# " + essay) * 4
    yield essay * 4 + "Z", "Z" + essay * 4
    yield "Z" + essay * 4, "Q" + essay * 4
    yield essay * 3 + "@" + essay, essay + "@" + essay * 3
    # Equally long blocks: which comes first decides what is left.
    yield "ab" * 30, "ba" * 30
    yield "abxcd", "abcd"
    yield "qabxcd", "abycdf"
    yield "private Thread currentThread;", "private volatile Thread currentThread;"
    yield "aab" * 60, "aba" * 70
    # One character beyond 16 bits is one character.
    yield "\U0001F600" * 3, "\U0001F601" * 3
    yield "\U0001F600a" * 120, "a\U0001F600" * 120
    yield "e\u0301", "\u00e9"
    yield "\r\n" * 20, "\n" * 20
    # As MRCR's answers are: one of two alike texts, cut off, continued.
    poem = "\n".join("Line %d of a poem about rain, and how it falls on %s." % (i, ["roofs", "roads", "rivers"][i % 3]) for i in range(40))
    other = poem.replace("rain", "snow").replace("roads", "fields")
    yield poem, other
    yield other, poem
    yield poem[:700], poem
    yield poem, poem[:700]
    yield poem + "\n\n" + other, poem
    yield "Sure! Here it is:\n" + poem, poem
    yield poem.upper(), poem
    yield poem[::-1], poem


def main():
    def ratio(a, b):
        return SequenceMatcher(None, a, b).ratio()

    written = [{"a": a, "b": b, "ratio": ratio(a, b)} for a, b in adversarial()]
    random = [ratio(*pair(number)) for number in range(1000)]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sequence-matcher.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump({"python": sys.version.split()[0], "random": random, "written": written}, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
