"""Greedy decoding with a cache, weights rounded to the F16 that is shipped."""
import copy

import torch


class Generator:
    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = copy.deepcopy(model), tokenizer
        with torch.no_grad():
            for p in self.model.parameters():
                if p.ndim == 2:
                    p.copy_(p.half().float())
            self.table = self.model.table().half().float()
        self.end = tokenizer.vocabulary.end

    @torch.no_grad()
    def answer(self, text, limit=600):
        """The completion of `text` up to the end token (excluded); prompt length in tokens; whether it ended by itself."""
        ids = self.tokenizer.encode(text)
        caches = [{} for _ in self.model.layers]
        new, out, at = ids, [], 0
        while True:
            count = len(new)
            logits = self.model(
                torch.tensor(new), torch.arange(at, at + count), [(0, count)], [torch.tensor([count - 1])], caches, self.table
            )
            at += count
            token = int(logits[0].argmax())
            if token == self.end or len(out) == limit:
                return self.tokenizer.decode(out), len(ids), token == self.end
            out.append(token)
            new = [token]
