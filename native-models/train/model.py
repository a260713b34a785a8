"""A small Llama (RMSNorm, rotary positions, SwiGLU, tied embedding, biases on q and k) that trains fast on long prompts.

Only completions are learned, so the last layer computes keys and values everywhere but queries, feed-forward and logits
for the learned tokens alone. Sequences are laid end to end without padding; attention runs per sequence. The rotary order is llama.cpp's (neighbouring pairs), so the export needs no permutation.
"""
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from .attention import attend
from .sampled import sampled


class Config(NamedTuple):
    layers: int = 2
    width: int = 128
    heads: int = 3
    head: int = 64
    hidden: int = 256
    rope_base: float = 1e6
    eps: float = 1e-5
    context: int = 16384


def turns(positions, head, base):
    """[tokens, 1, head / 2]: by what each pair of a head is turned, as complex numbers."""
    half = head // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * speed
    return torch.complex(angle.cos().float(), angle.sin().float())[:, None]


def turned(x, by):
    """`x`: [tokens, heads, head]; pair (2i, 2i + 1) turns by position * base ** (-2i / head)."""
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * by).flatten(-2)


def rotate(x, positions, base):
    return turned(x, turns(positions, x.shape[-1], base))


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return Normed.apply(x, self.weight, self.eps)


class Normed(torch.autograd.Function):
    """RMSNorm with its gradient written out: half of the passes over the tokens that the single operations take."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = torch.rsqrt_(x.square().mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        y = x * scale
        dy = grad * y
        dweight = dy.sum(tuple(range(x.ndim - 1)))
        back = dy.mv(weight)[..., None].div_(x.shape[-1]) if x.ndim == 2 else (dy * weight).mean(-1, keepdim=True)
        return (grad * weight).addcmul_(y, back, value=-1).mul_(scale), dweight, None


EVEN = 128  # rows: products of few sizes, since each size of bfloat16 has code made for it, which takes longer than the product


def evened(x):
    """`x` with rows of zeros up to a multiple of `EVEN`, but in generation."""
    return F.pad(x, (0, 0, 0, -len(x) % EVEN)) if len(x) > 1 else x


def product(x, linear, dtype):
    """What is multiplied is rounded to `dtype`. Processors with units for bfloat16 are several times as fast with it; weights are learned in float32."""
    return F.linear(evened(x.to(dtype)), linear.weight.to(dtype), None if linear.bias is None else linear.bias.to(dtype))[: len(x)]


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        inner = c.heads * c.head
        self.c = c
        self.norm1, self.norm2 = Norm(c.width, c.eps), Norm(c.width, c.eps)
        self.q, self.k = nn.Linear(c.width, inner), nn.Linear(c.width, inner)
        self.v, self.o = nn.Linear(c.width, inner, bias=False), nn.Linear(inner, c.width, bias=False)
        self.gate, self.up = nn.Linear(c.width, c.hidden, bias=False), nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, x, by, spans, picks=None, cache=None, looks=None, dtype=torch.float32):
        """`by`: what each place is turned by; `spans`: (start, end) of each sequence in x; `picks`: for each sequence the indexes (within it) that need an output.
        `looks`: how many heads, the last ones, are told where to look, and for each sequence in which outputs, and the places; what they
        are away from that comes second then, and third what they carry from each place.

        With `cache` (one sequence, generation) keys and values are appended to it and used as the past.
        """
        c, heads = self.c, (-1, self.c.heads, self.c.head)
        y = self.norm1(x).to(dtype)
        k = turned(product(y, self.k, dtype).view(heads), by).transpose(0, 1)
        v = product(y, self.v, dtype).view(heads).transpose(0, 1)
        if picks is not None:
            flat = torch.cat([a + p for (a, _), p in zip(spans, picks)])
            x, y, by = x[flat], y[flat], by[flat]
        q = turned(product(y, self.q, dtype).view(heads), by * c.head**-0.5).transpose(0, 1)
        past = 0
        if cache is not None:
            if cache:
                past = cache["k"].shape[1]
                k, v = torch.cat((cache["k"], k), 1), torch.cat((cache["v"], v), 1)
            cache["k"], cache["v"] = k, v
        pieces, at = [], 0
        for n, (a, b) in enumerate(spans):
            index = (torch.arange(b - a) if picks is None else picks[n]) + past
            pieces.append((at, a, index))
            at += len(index)
        out = attend(q.to(dtype), k.to(dtype), v, pieces)
        x = x + product(out.transpose(0, 1).flatten(1), self.o, dtype)
        y = self.norm2(x).to(dtype)
        x = x + product(F.silu(product(y, self.gate, dtype)) * product(y, self.up, dtype), self.down, dtype)
        if looks is None:
            return x
        v = v[-looks[0] :].float()
        return x, self._astray(q[-looks[0] :], k[-looks[0] :], pieces, spans, looks[1]), self._carried(v, spans, looks[1])

    @staticmethod
    def _astray(q, k, pieces, spans, looks):
        """The sum of the cross entropies between where some heads look and where they should."""
        total = q.new_zeros(())
        for (at, _, index), (a, b), (rows, places) in zip(pieces, spans, looks):
            if len(rows):
                scores = q[:, at + rows] @ k[:, a:b].transpose(1, 2)
                scores = scores.masked_fill(torch.arange(b - a)[None] > index[rows][:, None], -1e9)
                total = total + F.cross_entropy(scores.flatten(0, 1), places.repeat(len(q)), reduction="sum")
        return total

    def _carried(self, v, spans, looks):
        at = torch.cat([a + places for (a, _), (_, places) in zip(spans, looks)])
        return v[:, at].transpose(0, 1).flatten(1) @ self.o.weight[:, -len(v) * self.c.head :].t()


class Model(nn.Module):
    """`rows`: embedding of everything but the ends of values; `values`: one row for each such word, shared by its two forms; `forms`: their
    difference."""

    def __init__(self, config, vocabulary):
        super().__init__()
        self.config = config
        count = len(vocabulary.words.second)
        self.rows = nn.Parameter(torch.zeros(vocabulary.base, config.width))
        self.values = nn.Parameter(torch.zeros(count, config.width))
        self.forms = nn.Parameter(torch.zeros(2, config.width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.width, config.eps)

    def table(self):
        """The embedding as exported, in token order."""
        return torch.cat((self.rows, self.values + self.forms[0], self.values + self.forms[1]))

    def forward(self, ids, positions, spans, picks, caches=None, table=None, looks=None, dtype=torch.float32):
        """Logits of the picked tokens of all sequences, one after the other; with `looks` (layer -> see there) also how far attention is from
        them, and the logits of what the last layer carries from each place alone."""
        table = self.table() if table is None else table
        x, by = F.embedding(ids, table), turns(positions, self.config.head, self.config.rope_base)
        astray, carried = 0, None
        for n, layer in enumerate(self.layers):
            last, told = n == len(self.layers) - 1, looks and looks.get(n)
            if looks is not None and not last:
                x, away = sampled(layer, x, by, spans, told, dtype)
                astray = astray + away
                continue
            x = layer(x, by, spans, picks if last else None, caches[n] if caches else None, told, dtype)
            if told:
                x, away, carried = x
                astray = astray + away
        written = table.t().to(dtype)
        logits = (evened(self.norm(x).to(dtype)) @ written)[: len(x)].float()
        if looks is None:
            return logits
        starts = np.cumsum([0, *map(len, picks[:-1])])
        rows = torch.cat([int(start) + of for start, (of, _) in zip(starts, looks[len(self.layers) - 1][1])])
        size = x.detach()[rows].pow(2).mean(-1, keepdim=True).sqrt()
        return logits, astray, (evened((carried / size * self.norm.weight).to(dtype)) @ written)[: len(carried)].float()
