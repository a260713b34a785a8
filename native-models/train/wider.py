"""The model of the third course with one more head in every layer, and columns for what it finds.

  layer 0  looks at the tokens before those that `NEAR` takes in: sentences come again, and what stood before them tells which it is
  layer 1  is taught alone where to look, as the head of the course before was, now by both
  layer 2  is left to the training
"""
import random

import torch

from .circuit import TOKEN
from .model import Model
from .passages import NEAR, look_back, taught

BEFORE = NEAR + 1, 24  # places back
COLUMNS, HIDDEN = 32, 64
STRENGTH = 0.8  # of what is found, so that it is as large as what other heads find


def widened(old, vocabulary, passages, seed):
    """`passages`: as for the course before."""
    g = torch.Generator().manual_seed(seed)
    c = old.config
    new = Model(c._replace(width=c.width + COLUMNS, heads=c.heads + 1, hidden=c.hidden + HIDDEN), vocabulary)
    at = slice(c.heads * c.head, (c.heads + 1) * c.head)
    kept = (c.width / new.config.width) ** 0.5  # norms take the mean of more columns
    with torch.no_grad():
        state = new.state_dict()
        for name, tensor in state.items():
            if name.startswith("layers") and name.endswith("weight") and tensor.ndim == 2:
                tensor.copy_(torch.randn(*tensor.shape, generator=g) * 0.02)
            else:
                tensor.fill_(0.5 if "norm" in name else 0)
        for layer in new.layers:
            for linear in (layer.q, layer.k, layer.v):
                linear.weight[: at.start] = 0
            for linear in (layer.gate, layer.up):
                linear.weight[: c.hidden] = 0
            layer.o.weight.zero_(), layer.down.weight.zero_()
        for name, tensor in old.state_dict().items():
            state[name][tuple(slice(n) for n in tensor.shape)] = tensor * (kept if "norm" in name else 1)
        _before(new.layers[0], at, new.config, c.width, g)
    taught(new, at, passages, g, random.Random(seed))
    return new


def _before(layer, at, c, width, g):
    layer.q.weight[at], layer.k.weight[at] = 0, 0
    look_back(layer, at, *BEFORE, c)
    code = slice(at.start, at.start + COLUMNS)
    layer.v.weight[at] = 0
    layer.v.weight[code, :TOKEN] = torch.linalg.qr(torch.randn(TOKEN, COLUMNS, generator=g))[0].t()
    layer.o.weight[width:, code] = torch.eye(COLUMNS) * STRENGTH
