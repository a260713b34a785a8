"""The model of the first course, made larger without a change of what it says about streams: a layer, a head, and width.

The new columns of the residual stream are zero at first; norms weigh the old ones so that their mean square counts as before. What is
new is laid out for tasks that are read, as the circuit of the first course is for streams:

  layer 0  the new head looks `FAR` tokens back, which tells alike passages of a text apart
  layer 1  the new head finds the same token and tells what stood before it: whether a name has been searched for
  layer 2  copies what it finds; its first head looks for a first name that has not been searched for when a search begins
Words with and without a capital start alike, ordinals like their digits, and first names like each other.
"""
import torch

from . import format as fmt
from .circuit import FAST, MATCH, OFFSET, SCALE, SLOW, TOKEN, block, speeds
from .model import Config, Model
from .words import SPACE

FAR = 9
FAR_AT, ASKED_AT = slice(128, 160), slice(160, 184)  # columns that the new heads write to
GROWN = Config(layers=3, width=192, heads=4, hidden=384)
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]


def grown(old, old_tokens, vocabulary, seed):
    """`old`: the small model, whose tokens are the texts `old_tokens` (by id). Tokens it lacks start at random."""
    g = torch.Generator().manual_seed(seed)
    new = Model(GROWN, vocabulary)

    def rand(*shape):
        return torch.randn(*shape, generator=g)

    with torch.no_grad():
        _embedding(new, old, {t: i for i, t in enumerate(old_tokens)}, vocabulary, rand)
        for n, layer in enumerate(new.layers):
            _start(layer, rand)
            if n < old.config.layers:
                _take(layer, old.layers[n], old.config)
        _look_back(new.layers[0], old.config, rand)
        _same(new.layers[1], old.config, rand)
        _copies(new.layers[2], new.rows[vocabulary.id[fmt.SEARCH_OPEN]], new.rows[[vocabulary.id[w] for w in vocabulary.words.given]].mean(0), rand)
        new.norm.weight.fill_(0.5)
        new.norm.weight[: old.config.width] = old.norm.weight * _kept(old.config)
    return new


def _kept(was):
    return (was.width / GROWN.width) ** 0.5


def _embedding(new, old, known, vocabulary, rand):
    width = old.config.width
    size = old.rows[:, :TOKEN].pow(2).mean().sqrt()
    new.rows.zero_(), new.values.zero_(), new.forms.zero_()
    fresh = []
    for i in range(vocabulary.base):
        at = known.get(vocabulary.tokens[i].text)
        if at is None:
            fresh.append(i)
        else:
            new.rows[i, :width] = old.rows[at]
    new.rows[fresh, :TOKEN] = rand(len(fresh), TOKEN) * size
    new.values[:, :width], new.forms[:, :width] = old.values, old.forms
    name = rand(TOKEN) * size
    fresh = set(fresh)
    for word in vocabulary.words.given:
        at = vocabulary.id[word]
        new.rows[at, :TOKEN] = 0.75 * new.rows[at, :TOKEN] + 0.66 * name
    digits = [(str(n + 1), SPACE + word) for n, word in enumerate(ORDINALS)]
    for a, b in [(SPACE + w.lower(), w) for w in vocabulary.words.capital] + digits:
        if a in vocabulary.id and b in vocabulary.id and vocabulary.id[b] in fresh:
            a, b = vocabulary.id[a], vocabulary.id[b]
            new.rows[b, :TOKEN] = 0.9 * new.rows[a, :TOKEN] + 0.436 * new.rows[b, :TOKEN]


def _start(layer, rand):
    for norm in (layer.norm1, layer.norm2):
        norm.weight.fill_(0.5)
    for linear in (layer.q, layer.k, layer.v, layer.gate, layer.up):
        linear.weight.copy_(rand(*linear.weight.shape) * 0.02)
    layer.q.bias.zero_(), layer.k.bias.zero_(), layer.o.weight.zero_()
    layer.down.weight.copy_(rand(*layer.down.weight.shape) * 0.002)


def _take(layer, old, was):
    width, inner, hidden = was.width, was.heads * was.head, was.hidden
    layer.norm1.weight[:width] = old.norm1.weight * _kept(was)
    layer.norm2.weight[:width] = old.norm2.weight * _kept(was)
    for new, one in ((layer.q, old.q), (layer.k, old.k)):
        new.weight[:inner] = 0
        new.weight[:inner, :width] = one.weight
        new.bias[:inner] = one.bias
    layer.v.weight[:inner] = 0
    layer.v.weight[:inner, :width] = old.v.weight
    layer.o.weight[:width, :inner] = old.o.weight
    for new, one in ((layer.gate, old.gate), (layer.up, old.up)):
        new.weight[:hidden] = 0
        new.weight[:hidden, :width] = one.weight
    layer.down.weight.zero_()
    layer.down.weight[:width, :hidden] = old.down.weight


def _look_back(layer, was, rand):
    at = was.heads * was.head
    speed = speeds(GROWN)
    for i in range(FAST):
        layer.q.bias[at + 2 * i] = OFFSET
        layer.k.bias[at + 2 * i] = OFFSET * (speed[i] * FAR).cos()
        layer.k.bias[at + 2 * i + 1] = OFFSET * (speed[i] * FAR).sin()
    room = FAR_AT.stop - FAR_AT.start
    layer.v.weight[at : at + GROWN.head] = 0
    layer.v.weight[at : at + room, :TOKEN] = torch.linalg.qr(rand(TOKEN, room))[0].t()
    layer.o.weight[FAR_AT, at : at + room] = torch.eye(room) * SCALE * 2


def _same(layer, was, rand):
    at, room = was.heads * was.head, ASKED_AT.stop - ASKED_AT.start
    rows = slice(at + 2 * SLOW, at + GROWN.head)
    turn = torch.linalg.qr(rand(TOKEN, rows.stop - rows.start))[0].t()
    layer.q.weight[at : at + GROWN.head] = 0
    layer.k.weight[at : at + GROWN.head] = 0
    layer.q.weight[rows, :TOKEN] = turn * MATCH
    layer.k.weight[rows, :TOKEN] = turn * MATCH
    layer.v.weight[at : at + GROWN.head] = 0
    layer.v.weight[at : at + room, block(0)] = torch.eye(room)
    layer.o.weight[ASKED_AT, at : at + room] = torch.eye(room) * SCALE * 2


def _copies(layer, search, name, rand):
    """`search`: the row of the token that begins a search; `name`: what the rows of first names have in common."""
    for h in range(GROWN.heads):
        at = h * GROWN.head
        project = torch.linalg.qr(rand(GROWN.head, TOKEN))[0].t()
        layer.v.weight[at : at + GROWN.head] = 0
        layer.v.weight[at : at + GROWN.head, :TOKEN] = project.t()
        layer.o.weight[:TOKEN, at : at + GROWN.head] = project * 0.1
        rows = slice(at + 2 * SLOW, at + GROWN.head)
        layer.q.weight[rows] *= 4
        layer.k.weight[rows] *= 4
    there = rand(GROWN.head - 2 * SLOW)
    there /= there.norm()
    rows = slice(2 * SLOW, GROWN.head)
    layer.q.weight[rows, :TOKEN] += torch.outer(there, search[:TOKEN] / search[:TOKEN].norm()) * 1.5
    layer.k.weight[rows, :TOKEN] += torch.outer(there, name[:TOKEN] / name[:TOKEN].norm()) * 1.5
