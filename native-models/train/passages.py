"""The model of the second course with one more head in every layer, for passages of hundreds of words and for counted matches.

  layer 0  looks at the last `NEAR` tokens at once, which tells alike passages apart better than a single token does; where a detail is
           asked for, at the ordinal of the question instead
  layer 1  finds the place that a passage comes from, or the match whose number is that ordinal, and copies what stands there. Where to
           look it is taught alone at first, in some minutes: answers by themselves say little about that
  layer 2  is left to the training
What the model says hardly changes but where this decides.
"""
import random

import torch
import torch.nn.functional as F

from . import format as fmt
from .circuit import TOKEN, speeds
from .grow import FAR_AT, ORDINALS
from .model import Model, rotate, turns
from .words import SPACE

NEAR = 10  # tokens
WINDOW = 1e-2  # what a sharp window costs
ASK = 40.0  # how much an ordinal outweighs what is near
RECENT = slice(26, 36)  # rows of a head in whose pairs what is not long ago weighs more
LESSONS, CHOSEN, GAIN = 1500, 10.0, 0.4  # steps of the first lesson; how much a choice counts in it, against a token that is copied


def furthered(old, vocabulary, passages, seed):
    """`passages`: of some trajectories (token ids, [(a token, the place where it has to be looked up)], the last of which is a choice)."""
    g = torch.Generator().manual_seed(seed)
    c = old.config
    new = Model(c._replace(heads=c.heads + 1), vocabulary)
    at = slice(c.heads * c.head, (c.heads + 1) * c.head)
    with torch.no_grad():
        state = new.state_dict()
        for name, tensor in old.state_dict().items():
            state[name][tuple(slice(n) for n in tensor.shape)] = tensor
        for layer in new.layers:
            for linear in (layer.q, layer.k, layer.v):
                linear.weight[at] = torch.randn(c.head, c.width, generator=g) * 0.02
            layer.q.bias[at], layer.k.bias[at], layer.o.weight[:, at] = 0, 0, 0
        _near(new, at, vocabulary)
        answer, question = vocabulary.id["The" + fmt.ELDEST], vocabulary.id[fmt.TEXTS[1]]
        new.rows[answer] = 0.7 * (new.rows[answer] + new.rows[question])  # the answer begins as the question ends
    taught(new, at, passages, g, random.Random(seed))
    return new


def _near(model, at, vocabulary):
    layer, c = model.layers[0], model.config
    layer.q.weight[at], layer.k.weight[at] = 0, 0
    look_back(layer, at, 1, NEAR, c)
    y = layer.norm1(model.table())
    pairs = torch.arange(RECENT.start, RECENT.stop, 2) + at.start
    detail = _telling(y, [vocabulary.id[fmt.DETAIL_OPEN]])
    ordinal = _telling(y, [vocabulary.id[SPACE + word] for word in ORDINALS if SPACE + word in vocabulary.id])
    strength = (ASK * c.head**0.5 / len(pairs)) ** 0.5
    layer.q.weight[pairs] += detail * strength
    layer.k.weight[pairs] += ordinal * strength
    # What it finds goes where the token `FAR` back stands, in the same code.
    far = (c.heads - 2) * c.head
    layer.v.weight[at] = layer.v.weight[far : far + c.head]
    layer.o.weight[FAR_AT, at] = layer.o.weight[FAR_AT, far : far + c.head] * 2.5


def look_back(layer, at, first, last, c):
    """Biases by which a head looks at the tokens from `first` to `last` places back."""
    amount, turn = _window(speeds(c), first, last)
    layer.q.bias[at] = torch.stack((amount, torch.zeros_like(amount)), 1).flatten() * c.head**0.25
    layer.k.bias[at] = torch.stack((amount * turn.cos(), amount * turn.sin()), 1).flatten() * c.head**0.25


def _window(speed, first, last):
    """Amounts and turns of the pairs whose sum of cosines is even for the tokens from `first` to `last` places back and low for all others,
    that itself included."""
    with torch.enable_grad():
        fast = 20
        far = torch.cat((torch.arange(200).float(), torch.logspace(2.302, 4.2, 1500)))
        weight = torch.cat((torch.ones(200), (far[200:] * 0.00292)))  # how many tokens a point stands for
        angle = far[:, None] * speed[:fast]
        a = torch.full((fast,), 1.2, requires_grad=True)
        t = (speed[:fast] * (first + last) / 2).clone().requires_grad_(True)
        near = (far >= first) & (far <= last)
        optimizer = torch.optim.Adam((a, t), lr=0.05)
        for _ in range(1500):
            score = (a.pow(2) * (angle - t).cos()).sum(1)
            p = torch.log_softmax(score + weight.log(), 0)
            loss = -p[near].mean() + WINDOW * a.pow(2).sum()
            optimizer.zero_grad(), loss.backward(), optimizer.step()
    amount, turn = torch.zeros(len(speed)), torch.zeros(len(speed))
    amount[:fast], turn[:fast] = a.detach().abs(), t.detach()
    return amount, turn


def _telling(y, ids):
    """A direction whose product is about 1 for the rows `ids` and 0 for all others."""
    target = torch.zeros(len(y))
    target[ids] = 1
    weight = 1 + target * (len(y) / len(ids) - 1) * 0.2
    gram = (y * weight[:, None]).t() @ y
    return torch.linalg.solve(gram + torch.eye(y.shape[1]) * gram.diagonal().mean() * 0.01, (y * weight[:, None]).t() @ target)


def taught(model, at, passages, g, rng):
    """Queries and keys of the new head of layer 1 alone, by the places that are right; it copies what it finds, that of layer 2 a little."""
    layer, c = model.layers[1], model.config
    with torch.no_grad():
        lessons = [(_seen(model, torch.as_tensor(ids)), *torch.tensor(places).unbind(1)) for ids, places in passages]
    q, k = (torch.randn(c.head, c.width, generator=g).mul(0.05).requires_grad_() for _ in range(2))
    q_bias, k_bias = (torch.zeros(c.head, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam((q, k, q_bias, k_bias))
    for step in range(LESSONS):
        y, asking, place = rng.choice(lessons)
        positions = torch.arange(len(y))
        keys = rotate((y @ k.t() + k_bias)[:, None], positions, c.rope_base)[:, 0]
        queries = rotate((y[asking] @ q.t() + q_bias)[:, None], asking, c.rope_base)[:, 0] * c.head**-0.5
        scores = (queries @ keys.t()).masked_fill(positions[None] > asking[:, None], -1e9)
        weight = torch.ones(len(asking))
        weight[-1] = CHOSEN
        loss = (F.cross_entropy(scores, place, reduction="none") * weight).sum() / weight.sum()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / LESSONS) + 1e-4
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    with torch.no_grad():
        layer.q.weight[at], layer.k.weight[at], layer.q.bias[at], layer.k.bias[at] = q, k, q_bias, k_bias
        _copies(model.layers[1], at, g, GAIN)
        _copies(model.layers[2], at, g, GAIN / 8)
    print("where to look: loss %.2f" % loss.item(), flush=True)


def _seen(model, ids):
    """What layer 1 gets of a prompt."""
    c = model.config
    x = model.layers[0](F.embedding(ids, model.table()), turns(torch.arange(len(ids)), c.head, c.rope_base), [(0, len(ids))])
    return model.layers[1].norm1(x)


def _copies(layer, at, g, gain):
    project = torch.linalg.qr(torch.randn(at.stop - at.start, TOKEN, generator=g))[0]
    layer.v.weight[at] = 0
    layer.v.weight[at, :TOKEN] = project
    layer.o.weight[:TOKEN, at] = project.t() * gain
