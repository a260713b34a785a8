"""The start of training: weights laid out as an induction circuit (a random start stalls for over a million tokens).

The residual stream is used in blocks: columns 0-55 hold the token itself, then three blocks of 24 hold what the three
heads of layer 0 fetch from 1, 2 and 5 tokens back. A rotary bias makes a head look a fixed distance back: with q bias
(a, 0) and k bias (a cos wd, a sin wd) in every fast pair, the score is a sum of cos(w (distance - d)).

The heads of the last layer match such blocks with each other and copy the token they find:
  head 0  the token and the one two before it with the two before the place found (ids, the second word of a value)
  head 1  "the token before me" with "the token before you" (the first word of the value after this key)
  head 2  the key five tokens back with the list entry two tokens back (the next key of the list)
Five tokens back from the call that cuts stands the note that says how long the message is, so layer 0 hands that on as well.
All match in the slow pairs alone, which hardly turn over a prompt, so that the start prefers no place: an old value weighs as much as a
new one. Nothing is frozen: what training makes of it is its own.
"""
import torch

TOKEN, BLOCK, SCALE = 56, 24, 0.06
FAST, SLOW = 12, 20  # pairs: below FAST offsets are looked for, from SLOW on contents are matched
OFFSET, MATCH = 6.5, 1.7  # how strongly


def speeds(c):
    """How far the pairs of a head turn from one place to the next."""
    return c.rope_base ** (-torch.arange(c.head // 2).float() / (c.head // 2))


def block(n):
    return slice(TOKEN + BLOCK * n, TOKEN + BLOCK * (n + 1))


def initialise(model, vocabulary, fmt, seed):
    g = torch.Generator().manual_seed(seed)
    c = model.config
    if (c.width, c.heads, c.head) != (TOKEN + 3 * BLOCK, 3, 64):
        raise ValueError("the circuit is laid out for width %d and three heads of 64" % (TOKEN + 3 * BLOCK))

    def rand(*shape):
        return torch.randn(*shape, generator=g)

    with torch.no_grad():
        model.rows[:, :TOKEN] = rand(len(model.rows), TOKEN) * SCALE
        model.values[:, :TOKEN] = rand(len(model.values), TOKEN) * SCALE
        model.forms[:, :TOKEN] = rand(2, TOKEN) * SCALE * 0.4
        _tie(model, vocabulary, fmt)
        shared = rand(BLOCK, TOKEN) * TOKEN**-0.5
        for n, layer in enumerate(model.layers):
            for linear in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up):
                linear.weight.copy_(rand(*linear.weight.shape) * 0.02)
            layer.down.weight.copy_(rand(*layer.down.weight.shape) * 0.002)
            layer.q.bias.zero_(), layer.k.bias.zero_()
            if n == 0:
                _offsets(layer, c, shared)
            elif n == len(model.layers) - 1:
                _matches(layer, shared, rand)
            else:
                layer.o.weight.mul_(0.1)


def _tie(model, vocabulary, fmt):
    """Tokens that play the same part start alike: a key with and without colon, a separator of the list and of the calls. Notes of like
    lengths are like each other."""
    pairs = [("\u2581" + k, "\u2581" + k + ":") for k in vocabulary.words.keys]
    pairs += [(fmt.NEXT, fmt.FOLD_NEXT), (fmt.LAST, fmt.FOLD_CLOSE), (" characters, first to last: ", fmt.FOLD_OPEN)]
    for a, b in pairs:
        a, b = vocabulary.id[a], vocabulary.id[b]
        model.rows[b] = 0.9 * model.rows[a] + 0.45 * model.rows[b]
    notes = [vocabulary.id[n] for n in fmt.NOTES.values()]
    for a, b in zip(notes, notes[1:]):
        model.rows[b] = 0.9 * model.rows[a] + 0.436 * model.rows[b]


def _offsets(layer, c, shared):
    speed = speeds(c)
    for h, offsets in enumerate(((1,), (2,), (5,))):
        at = h * c.head
        for i in range(FAST):
            layer.q.bias[at + 2 * i] = OFFSET
            layer.k.bias[at + 2 * i] = OFFSET * sum((speed[i] * d).cos() for d in offsets) / len(offsets) ** 0.5
            layer.k.bias[at + 2 * i + 1] = OFFSET * sum((speed[i] * d).sin() for d in offsets) / len(offsets) ** 0.5
        layer.v.weight[at : at + BLOCK, :TOKEN] = shared
        layer.o.weight[:, at : at + BLOCK] = 0
        layer.o.weight[block(h), at : at + BLOCK] = torch.eye(BLOCK) * SCALE


def _matches(layer, shared, rand):
    """Each match is projected into the slow pairs by one random map for queries and keys."""
    room = 64 - 2 * SLOW

    def spread():
        return torch.linalg.qr(rand(room, BLOCK))[0]

    for h in range(3):
        at = h * 64
        rows, turn = slice(at + 2 * SLOW, at + 64), spread()
        layer.q.weight[rows] = 0
        layer.k.weight[rows] = 0
        if h == 0:
            layer.q.weight[rows, :TOKEN] = turn @ shared * MATCH
            layer.k.weight[rows, block(0)] = turn * MATCH
            other = spread()
            layer.q.weight[rows, block(1)] = other * MATCH
            layer.k.weight[rows, block(1)] = other * MATCH
        else:
            layer.q.weight[rows, block(0 if h == 1 else 2)] = turn * MATCH
            layer.k.weight[rows, block(0 if h == 1 else 1)] = turn * MATCH
        project = torch.linalg.qr(rand(64, TOKEN))[0].t()  # [token, 64]
        layer.v.weight[at : at + 64] = 0
        layer.v.weight[at : at + 64, :TOKEN] = project.t()
        layer.o.weight[:, at : at + 64] = 0
        layer.o.weight[:TOKEN, at : at + 64] = project * 0.15

