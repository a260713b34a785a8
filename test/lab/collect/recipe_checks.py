"""Checks of scripts/training for recipe.test.ts: python recipe_checks.py MODEL.gguf ADAPTER.gguf IDS. Prints one line of JSON."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts", "training"))

import torch

import adapter
from recipe import loaded, said

model_path, adapter_path, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.manual_seed(5)
model = loaded(model_path, "cpu")
shared, long, short = list(range(1, 60)), list(range(60, 110)), list(range(150, 170))
rows = [
    {"input_ids": shared + long, "loss_mask": [0] * 60 + [1] * 49},
    {"input_ids": shared + short + long, "loss_mask": [0] * 80 + [1] * 49},
    {"input_ids": shared + short + long + short, "loss_mask": [0] * 129 + [1] * 20},
]


def predicted():
    return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)


with torch.no_grad():
    together = said(model, rows, "cpu", False)
    apart = torch.cat([said(model, [row], "cpu", False) for row in rows])
    before = predicted()
    head = model.lm_head.weight
    kept = head.clone()
    head[200:350] = head[200]
    unlearned = adapter.unlearned(model, [5, 200, 201, 390])
    head.copy_(kept)
    adapter.CROWD = -1  # takes every token for one of a crowd
    adapter.attach(model, 4, 2, False, [7, 9])
    attached = predicted()
    for name, value in adapter.weights(model).items():
        value.copy_(0.2 * torch.randn_like(value))
        value.copy_(value.half())
    after = predicted()
adapter.write(model, adapter_path, "base")
print(json.dumps({
    "learned": len(together),
    "apart": (together - apart).abs().max().item(),
    "untaught": (attached - before).abs().max().item(),
    "unlearned": unlearned,
    "before": before.tolist(),
    "after": after.tolist(),
}))  # fmt: skip
