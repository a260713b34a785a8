"""Where a message is cut into fragments: equal character distances moved to the nearest natural border, as the runtime does."""
import re

from . import format as fmt

_BORDERS = [re.compile(p) for p in (r"\n\n", r"\n", r"[.;!?](?=\s)", r"(?=\s)")]


def cut(text, k, start=fmt.START_MARKER, end=fmt.END_MARKER):
    """`k` half-open character spans from the first character of `start` to the last of `end`."""
    first = text.index(start)
    last = text.index(end, first) + len(end)
    size = (last - first) / k
    bounds = [first]
    for i in range(1, k):
        bounds.append(border(text, first + size * i, size / 4))
    bounds.append(last)
    return list(zip(bounds, bounds[1:]))


def border(text, ideal, reach):
    """The natural border nearest to `ideal`, of the first class that has one within `reach`."""
    low, high = int(ideal - reach), int(ideal + reach) + 1
    for pattern in _BORDERS:
        found = [low + m.end() for m in pattern.finditer(text[low : high + 2])]
        found = [c for c in found if abs(c - ideal) <= reach]
        if found:
            return min(found, key=lambda c: abs(c - ideal))
    return round(ideal)
