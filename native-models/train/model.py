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


class Config(NamedTuple):
    layers: int = 2
    width: int = 128
    heads: int = 3
    head: int = 64
    hidden: int = 256
    rope_base: float = 1e6
    eps: float = 1e-5
    context: int = 16384


def rotate(x, positions, base):
    """`x`: [tokens, heads, head]; pair (2i, 2i + 1) turns by position * base ** (-2i / head)."""
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * speed
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


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

    def forward(self, x, positions, spans, picks=None, cache=None, looks=None):
        """`spans`: (start, end) of each sequence in x; `picks`: for each sequence the indexes (within it) that need an output.
        `looks`: how many heads, the last ones, are told where to look, and for each sequence in which outputs, and the places; what they
        are away from that comes second then, and third what they carry from each place.

        With `cache` (one sequence, generation) keys and values are appended to it and used as the past.
        """
        c = self.c
        y = self.norm1(x)
        k = rotate(self.k(y).view(-1, c.heads, c.head), positions, c.rope_base).transpose(0, 1)
        v = self.v(y).view(-1, c.heads, c.head).transpose(0, 1)
        if picks is not None:
            flat = torch.cat([a + p for (a, _), p in zip(spans, picks)])
            x, y, positions = x[flat], y[flat], positions[flat]
        q = self.q(y).view(-1, c.heads, c.head)
        q = rotate(q, positions, c.rope_base).transpose(0, 1) * c.head**-0.5
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
        out = attend(q.contiguous(), k.contiguous(), v.contiguous(), pieces)
        x = x + self.o(out.transpose(0, 1).flatten(1))
        y = self.norm2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        if looks is None:
            return x
        return x, self._astray(q[-looks[0] :], k[-looks[0] :], pieces, spans, looks[1]), self._carried(v[-looks[0] :], spans, looks[1])

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

    def forward(self, ids, positions, spans, picks, caches=None, table=None, looks=None):
        """Logits of the picked tokens of all sequences, one after the other; with `looks` (layer -> see there) also how far attention is from
        them, and the logits of what the last layer carries from each place alone."""
        table = self.table() if table is None else table
        x = F.embedding(ids, table)
        astray, carried = 0, None
        for n, layer in enumerate(self.layers):
            last, told = n == len(self.layers) - 1, looks and looks.get(n)
            x = layer(x, positions, spans, picks if last else None, caches[n] if caches else None, told)
            if told:
                x, away, carried = x
                astray = astray + away
        logits = self.norm(x) @ table.t()
        if looks is None:
            return logits
        starts = np.cumsum([0, *map(len, picks[:-1])])
        rows = torch.cat([int(start) + of for start, (of, _) in zip(starts, looks[len(self.layers) - 1][1])])
        size = x.detach()[rows].pow(2).mean(-1, keepdim=True).sqrt()
        return logits, astray, (carried / size * self.norm.weight) @ table.t()
