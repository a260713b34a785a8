"""Causal attention of all heads over all sequences of a batch.

Whole sequences go to PyTorch's fused kernel, short ones of like lengths padded side by side: a causal mask hides what is padded behind a sequence.
Few queries of a long sequence are computed here, with the gradient written out: the fused kernel wants a mask for them, which costs twice as much.
PyTorch 1.13 has no fused kernel; there everything is computed here.
"""
import torch
import torch.nn.functional as F

CHUNK = 256
QUERIES, KEYS = 64, 512  # multiples of which products are rounded up to
SHORT = 512  # keys: sequences up to here are padded to run side by side
KEPT = 1 << 24  # weights of a call that are kept for the gradient; where there are more they are computed again, for memory
WASTE = 1.25  # how much longer the longest of those that run side by side may be than the shortest
FUSED = hasattr(F, "scaled_dot_product_attention")


def attend(q, k, v, pieces):
    """`q`: [heads, n, head] already scaled, `k`, `v`: [heads, m, head]; `pieces`: of each sequence, in order, the first of its queries, the first
    of its keys, and the ascending places of its queries among its keys."""
    if not FUSED or len(q[0]) == 1:  # a token at a time: generation
        return Attention.apply(q.contiguous(), k.contiguous(), v.contiguous(), pieces)
    pieces = [(at, start, index, int(index[-1]) + 1) for at, start, index in pieces if len(index)]
    asked = _stretches(q, [(at, len(index)) for at, _, index, _ in pieces])
    keys, values = (_stretches(t, [(start, size) for _, start, _, size in pieces]) for t in (k, v))
    found = [None] * len(pieces)
    for fused, some in _groups([(index, size) for _, _, index, size in pieces]):
        mine = [[t[n] for n in some] for t in (asked, keys, values)]
        places = [pieces[n][2] for n in some]
        for n, out in zip(some, _beside(*mine, places) if fused else [Attention.apply(*(t[0] for t in mine), [(0, 0, places[0])])]):
            found[n] = out
    return torch.cat(found, 1)


def _stretches(t, wanted):
    """Ascending stretches (first, size) of the second dimension: by one split, whose gradient is one copy."""
    sizes, at = [], 0
    for first, size in wanted:
        sizes += [first - at, size]
        at = first + size
    return t.split([*sizes, t.shape[1] - at], 1)[1::2]


def _groups(sequences):
    """Which sequences (places of the queries, keys) run side by side, and whether in the fused kernel."""
    order = sorted(range(len(sequences)), key=lambda n: (len(sequences[n][0]) == sequences[n][1], sequences[n][1]))
    groups, last = [], None
    for n in order:
        index, size = sequences[n]
        whole = len(index) == size
        if last and last[0] == whole and size <= min(SHORT, WASTE * last[1] + 8):
            groups[-1][1].append(n)
        else:
            groups.append((whole or size <= SHORT, [n]))
            last = (whole, size)
    return groups


def _beside(q, k, v, places):
    """What the queries of some sequences find. Behind a shorter one is nothing, which no query sees."""
    whole = len(places[0]) == k[0].shape[1]
    if len(q) == 1 and whole:
        return [F.scaled_dot_product_attention(q[0][None], k[0][None], v[0][None], is_causal=True, scale=1.0)[0]]
    padded = lambda some: torch.stack([F.pad(t, (0, 0, 0, max(t.shape[1] for t in some) - t.shape[1])) for t in some])  # noqa: E731
    if whole:
        out = F.scaled_dot_product_attention(padded(q), padded(k), padded(v), is_causal=True, scale=1.0)
    else:
        asked = torch.stack([F.pad(of, (0, max(map(len, places)) - len(of))) for of in places])
        k = padded(k)
        seen = torch.arange(k.shape[2]) <= asked[:, :, None]
        out = F.scaled_dot_product_attention(padded(q), k, padded(v), attn_mask=seen[:, None], scale=1.0)
    return [out[n, :, : len(of)] for n, of in enumerate(places)]


class Attention(torch.autograd.Function):
    """A chunk of queries at a time: keys past the last one of a chunk are left out, so half of the square is never computed. Numbers of queries and keys
    are rounded up, by what no query sees: products of few sizes are faster (`model.EVEN`)."""

    @staticmethod
    def forward(ctx, q, k, v, pieces):
        out = torch.empty_like(q)
        parts, even = [], len(q[0]) > 1
        kept = len(q) * sum(len(index) * (int(index[-1]) + 1) for _, _, index in pieces if len(index)) <= KEPT
        if even:
            k, v = (F.pad(t, (0, 0, 0, KEYS)) for t in (k, v))
        for at, start, index in pieces:
            for a in range(0, len(index), CHUNK):
                part = index[a : a + CHUNK]
                low, high = int(part[0]), int(part[-1]) + 1
                more = -len(part) % QUERIES if even else 0
                high += min(-high % KEYS, k.shape[1] - start - high) if even else 0
                hidden = torch.arange(low, high)[None] > F.pad(part, (0, more))[:, None]
                rows, seen = slice(at + a, at + a + len(part)), slice(start, start + high)
                for h in range(len(q)):
                    p = Attention._weights(F.pad(q[h, rows], (0, 0, 0, more)), k[h, seen], hidden)
                    out[h, rows] = (p @ v[h, seen])[: len(part)]
                    parts.append((h, rows, seen, more, hidden, p if kept else None))
        ctx.save_for_backward(q, k, v, out)
        ctx.parts, ctx.keys = parts, k.shape[1] - KEYS * even
        return out

    @staticmethod
    def _weights(asked, k, hidden):
        """`hidden`: which of the last keys each query does not see."""
        p = asked @ k.t()
        p[:, len(k) - hidden.shape[1] :].masked_fill_(hidden, -1e9)
        return torch.softmax(p, -1)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out = ctx.saved_tensors
        grad = grad.contiguous()
        dot = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h, rows, seen, more, hidden, p in ctx.parts:
            g, asked, d = (F.pad(t[h, rows], (0, 0, 0, more)) for t in (grad, q, dot))
            p = Attention._weights(asked, k[h, seen], hidden) if p is None else p
            dv[h, seen] += p.t() @ g
            s = (g @ v[h, seen].t()).sub_(d).mul_(p)
            dq[h, rows] = (s @ k[h, seen])[: len(d) - more]
            dk[h, seen] += s.t() @ asked
        ctx.parts = None
        return dq, dk[:, : ctx.keys], dv[:, : ctx.keys], None
