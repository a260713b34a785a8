"""Where tokens stand in others."""
import numpy as np


def pairs(some):
    """(a token, where it is to be looked for) as an array of two columns, also of none."""
    return np.array(some, np.int64).reshape(-1, 2)


class Found:
    def __init__(self, ids):
        self.text = np.array(ids, np.uint16).tobytes()

    def first(self, tokens, start):
        return self._found(self.text.find, tokens, 2 * start, None)

    def last(self, tokens, end):
        return self._found(self.text.rfind, tokens, None, 2 * end)

    def all(self, tokens, end):
        at = self.first(tokens, 0)
        while 0 <= at < end:
            yield at
            at = self.first(tokens, at + 1)

    @staticmethod
    def _found(find, tokens, start, end):
        some = np.array(tokens, np.uint16).tobytes()
        at = find(some, start, end)
        while at % 2 and at > 0:  # half of one token and half of another
            start, end = (at + 1, end) if start is not None else (start, at + len(some) - 1)
            at = find(some, start, end)
        return at // 2
