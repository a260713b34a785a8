"""The gradient of a layer from a sample of its tokens.

Only completions are learned, and attention is sharp: of what comes back to a layer below the last one, 99.9 % of the energy is in some 5 % of the tokens.
So a layer runs forward without a record, and backward for a sample: a token is in it with a chance that is proportional to the size of its gradient, 1 at
most, and counts as much more as it is rarer. The expected gradient is the whole one, the error is small where it matters (importance sampling), and
what is spared is most of the attention's way back. Keys and values are computed again for all tokens, since any of them may have been looked at.
"""
import math

import torch

SHARE = 0.12  # of the tokens of a sequence, about
FEW = 128  # no sequence has fewer, if it is that long


def sampled(layer, x, by, spans, looks, dtype):
    """As `layer(x, by, spans, None, None, looks, dtype)`, but for what `looks` makes it carry."""
    if not looks or not any(len(rows) for rows, _ in looks[1]):
        return Sampled.apply(layer, by, spans, None, dtype, x, *layer.parameters())[0], 0
    return Sampled.apply(layer, by, spans, looks, dtype, x, *layer.parameters())


class Sampled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, by, spans, looks, dtype, x, *parameters):
        ctx.given = layer, by, spans, looks, dtype
        ctx.save_for_backward(x)
        out = layer(x, by, spans, None, None, looks, dtype)
        return out[:2] if looks else (out, x.new_zeros(()))

    @staticmethod
    def backward(ctx, grad, astray):
        layer, by, spans, looks, dtype = ctx.given
        x = ctx.saved_tensors[0].detach().requires_grad_()
        picks, scales = zip(*(_pick(grad[a:b], looks[1][n][0] if looks else None) for n, (a, b) in enumerate(spans)))
        flat = torch.cat([a + p for (a, _), p in zip(spans, picks)])
        wanted = grad[flat] * torch.cat(scales)[:, None]
        with torch.enable_grad():
            if looks:
                told = [(torch.searchsorted(p, rows.contiguous()), places) for p, (rows, places) in zip(picks, looks[1])]
                out, away, _ = layer(x, by, spans, picks, None, (looks[0], told), dtype)
                ends, given = [out, away], [wanted, astray]
            else:
                ends, given = [layer(x, by, spans, picks, None, None, dtype)], [wanted]
            found = torch.autograd.grad(ends, [x, *layer.parameters()], given)
        dx = found[0]
        dx += grad  # what goes past the layer is whole
        dx[flat] -= wanted
        return None, None, None, None, None, dx, *found[1:]


def _pick(grad, told):
    """Ascending places, those that are `told` among them, and what each counts."""
    size = grad.norm(dim=1)
    count = max(FEW, int(SHARE * len(size)))
    if count >= len(size):
        return torch.arange(len(size)), torch.ones(len(size))
    chance = (size * (count / size.sum().clamp_min(1e-30))).clamp_max(1)
    for _ in range(3):  # those that are certain leave more to the others
        certain = chance >= 1
        rest = count - certain.sum()
        chance = torch.where(certain, chance, (size * (rest / size[~certain].sum().clamp_min(1e-30))).clamp_max(1))
    # Every time the sum of chances passes a whole number, beginning anywhere: late digits are as good as a generator, which threads would have to share.
    begin = math.frexp(float(size.double().sum()))[0] * 2**24 % 1
    passed = (chance.double().cumsum(0) + begin).floor()
    taken = passed.diff(prepend=torch.zeros(1, dtype=torch.double)) > 0
    scale = torch.where(taken, 1 / chance.clamp_min(1e-30), torch.zeros(()))
    if told is not None:
        taken[told] = True  # with their own gradient by chance only
    places = taken.nonzero().flatten()
    return places, scale[places]
