"""Interference streams: keys whose values are updated again and again."""
from typing import NamedTuple


class Stream(NamedTuple):
    """`pairs`: (key, value) in order; `order`: the keys as listed; `values`: key -> its values, oldest first."""

    order: list
    pairs: list
    values: dict

    @property
    def last(self):
        return {k: v[-1] for k, v in self.values.items()}


def make_stream(words, rng, keys, n, order=None):
    """`n` values for each of `keys` keys, all distinct, shuffled so that neighbours never share a key (when n > 1, keys > 1). With an `order`
    a third of the keys is asked for, whose updates all stand in the middle or at the start of the stream."""
    names = rng.sample(words.keys, keys)
    third = -(-keys // 3)
    if order:
        together, others = _shuffled(range(third), n, rng), _shuffled(range(third, keys), n, rng)
        at = len(others) // 2 if order == "middle" else 0
        seq = others[:at] + together + others[at:]
    else:
        seq = _shuffled(range(keys), n, rng)
    pool = rng.sample(words.values, keys * n)
    pairs = [(names[k], v) for k, v in zip(seq, pool)]
    values = {}
    for k, v in pairs:
        values.setdefault(k, []).append(v)
    asked = names[:third] if order else names[:]
    rng.shuffle(asked)
    return Stream(asked, pairs, values)


def _shuffled(keys, n, rng):
    seq = [k for k in keys for _ in range(n)]
    rng.shuffle(seq)
    if len(keys) > 1:
        _separate(seq, rng)
    return seq


def _separate(seq, rng):
    """Swaps elements until no two neighbours are equal; starts over where the multiset is too tight for that."""
    size = len(seq)

    def clash(i):
        return (i > 0 and seq[i] == seq[i - 1]) or (i + 1 < size and seq[i] == seq[i + 1])

    for _ in range(50):
        bad = [i for i in range(1, size) if seq[i] == seq[i - 1]]
        if not bad:
            return
        for i in bad:
            for _ in range(40):
                j = rng.randrange(size)
                seq[i], seq[j] = seq[j], seq[i]
                if not clash(i) and not clash(j):
                    break
                seq[i], seq[j] = seq[j], seq[i]
        if any(seq[i] == seq[i - 1] for i in range(1, size)) and rng.random() < 0.2:
            rng.shuffle(seq)
