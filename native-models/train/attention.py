"""Causal attention of all heads over all sequences of a batch, with its gradient written out.

Debian's PyTorch has no fused attention and a slow batched product; plain matrix products, a chunk of queries at a time,
are ten times faster. Keys past the last query of a chunk are left out, so half of the square is never computed.
"""
import torch

CHUNK = 256


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, pieces):
        """`q`: [heads, n, head] already scaled, `k`, `v`: [heads, m, head]; `pieces`: of each sequence the first of its queries, the first of
        its keys, and the ascending places of its queries among its keys."""
        out = torch.empty_like(q)
        parts = []
        for at, start, index in pieces:
            for a in range(0, len(index), CHUNK):
                part = index[a : a + CHUNK]
                low, high = int(part[0]), int(part[-1]) + 1
                hidden = torch.arange(low, high)[None] > part[:, None]
                rows, seen = slice(at + a, at + a + len(part)), slice(start, start + high)
                for h in range(len(q)):
                    p = q[h, rows] @ k[h, seen].t()
                    p[:, low:].masked_fill_(hidden, -1e9)
                    p = torch.softmax(p, -1)
                    torch.mm(p, v[h, seen], out=out[h, rows])
                    parts.append((h, rows, seen, p))
        ctx.save_for_backward(q, k, v, out)
        ctx.parts = parts
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out = ctx.saved_tensors
        grad = grad.contiguous()
        dot = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h, rows, seen, p in ctx.parts:
            g = grad[h, rows]
            dv[h, seen].addmm_(p.t(), g)
            s = (g @ v[h, seen].t()).sub_(dot[h, rows]).mul_(p)
            torch.mm(s, k[h, seen], out=dq[h, rows])
            dk[h, seen].addmm_(s.t(), q[h, rows])
        ctx.parts = None
        return dq, dk, dv, None


attend = Attention.apply
