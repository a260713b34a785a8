"""The start of training: weights laid out as an induction circuit (a random start stalls for over a million tokens).

The residual stream is used in blocks: columns 0-95 hold the token itself, then three blocks of 32 hold what the three
heads of layer 0 fetch from 1, 2 and 3-4 tokens back. A rotary bias makes a head look a fixed distance back: with q bias
(a, 0) and k bias (a cos wd, a sin wd) in every fast pair, the score is a sum of cos(w (distance - d)).

The heads of the last layer match such blocks with each other (in the slow pairs, which hardly turn over a prompt) and
copy the token they find:
  head 0  what comes next after the same last tokens (ids)
  head 1  "the token before me" with "the token before you" (the value after this key)
  head 2  the key three or four tokens back with the list entry two tokens back (the next key of the list)
Everything is trained afterwards; nothing is frozen.
"""
import torch

TOKEN, BLOCK, SCALE = 96, 32, 0.06


def block(n):
    return slice(TOKEN + BLOCK * n, TOKEN + BLOCK * (n + 1))


def initialise(model, vocabulary, fmt, seed):
    g = torch.Generator().manual_seed(seed)
    c = model.config
    if (c.width, c.heads, c.head) != (TOKEN + 3 * BLOCK, 3, 64):
        raise ValueError("the circuit is laid out for width 192 and three heads of 64")

    def rand(*shape):
        return torch.randn(*shape, generator=g)

    with torch.no_grad():
        model.rows[:, :TOKEN] = rand(len(model.rows), TOKEN) * SCALE
        model.values[:, :TOKEN] = rand(len(model.values), TOKEN) * SCALE
        model.forms[:, :TOKEN] = rand(2, TOKEN) * SCALE * 0.4
        _tie(model, vocabulary, fmt)
        shared = rand(BLOCK, TOKEN) * TOKEN**-0.5
        mix = [torch.linalg.qr(rand(BLOCK, BLOCK))[0] for _ in range(2)]
        for n, layer in enumerate(model.layers):
            for linear in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up):
                linear.weight.copy_(rand(*linear.weight.shape) * 0.02)
            layer.down.weight.copy_(rand(*layer.down.weight.shape) * 0.002)
            layer.q.bias.zero_(), layer.k.bias.zero_()
            if n == 0:
                _offsets(layer, c, shared)
            elif n == len(model.layers) - 1:
                _matches(layer, shared, mix, rand)
            else:
                layer.o.weight.mul_(0.1)


def _tie(model, vocabulary, fmt):
    """Tokens that play the same part start alike: a key with and without colon, a separator of the list and of the calls."""
    pairs = [("\u2581" + k, "\u2581" + k + ":") for k in vocabulary.words.keys]
    pairs += [(",\u2581", fmt.FOLD_NEXT), (" and ", fmt.FOLD_CLOSE), (" characters, first to last: ", fmt.FOLD_OPEN)]
    for a, b in pairs:
        a, b = vocabulary.id[a], vocabulary.id[b]
        model.rows[b] = 0.9 * model.rows[a] + 0.45 * model.rows[b]


def _offsets(layer, c, shared, strength=6.5, fast=12):
    speed = c.rope_base ** (-torch.arange(c.head // 2).float() / (c.head // 2))
    for h, offsets in enumerate(((1,), (2,), (3, 4))):
        at = h * c.head
        for i in range(fast):
            layer.q.bias[at + 2 * i] = strength
            layer.k.bias[at + 2 * i] = strength * sum((speed[i] * d).cos() for d in offsets) / len(offsets) ** 0.5
            layer.k.bias[at + 2 * i + 1] = strength * sum((speed[i] * d).sin() for d in offsets) / len(offsets) ** 0.5
        layer.v.weight[at : at + BLOCK, :TOKEN] = shared
        layer.o.weight[:, at : at + BLOCK] = 0
        layer.o.weight[block(h), at : at + BLOCK] = torch.eye(BLOCK) * SCALE


def _matches(layer, shared, mix, rand, strength=1.7):
    for h in range(3):
        at = h * 64
        slow = slice(at + 32, at + 64)
        layer.q.weight[slow] = 0
        layer.k.weight[slow] = 0
        eye = torch.eye(BLOCK)
        if h == 0:
            layer.q.weight[slow, :TOKEN] = shared * strength
            layer.k.weight[slow, block(0)] = eye * strength
            for n in range(2):
                layer.q.weight[slow, block(n)] = mix[n] * strength
                layer.k.weight[slow, block(n + 1)] = mix[n] * strength
        elif h == 1:
            layer.q.weight[slow, block(0)] = eye * strength
            layer.k.weight[slow, block(0)] = eye * strength
        else:
            layer.q.weight[slow, block(2)] = eye * strength
            layer.k.weight[slow, block(1)] = eye * strength
        project = torch.linalg.qr(rand(TOKEN, 64))[0]
        layer.v.weight[at : at + 64] = 0
        layer.v.weight[at : at + 64, :TOKEN] = project.t()
        layer.o.weight[:, at : at + 64] = 0
        layer.o.weight[:TOKEN, at : at + 64] = project * 0.15
