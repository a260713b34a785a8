"""Checks of scripts/training for recipe.test.ts: python recipe_checks.py MODEL.gguf ADAPTER.gguf IDS. Prints one line of JSON."""
import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import patch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts", "training"))

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import adapter
from recipe import keep, loaded, plain_step, resume, reward_step, said

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
    with adapter.off(model):
        off = predicted()
adapter.write(model, adapter_path, "base")

with torch.no_grad():
    everywhere = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    with adapter.off(model):
        alone = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    distance = (alone.exp() * (alone - everywhere)).sum(-1).mean().item()
stepped = plain_step(model, torch.tensor(ids), SimpleNamespace(device="cpu", half=False))
slopes = [value.grad.abs().max().item() for value in adapter.weights(model).values()]


def gradient(loss, shift):
    """Of one step on two tries, when all tokens became likelier by `shift` nats since they were sampled."""
    model.zero_grad()
    tries = [[{**row, "trajectory": name} for row in rows[:1]] for name in ("right", "wrong")]
    kept = {each[0]["trajectory"]: said(model, each, "cpu", False).detach() - shift for each in tries}
    reward_step(model, [(tries[0], 1.0, 1.0), (tries[1], 0.0, -1.0)], SimpleNamespace(loss=loss, device="cpu", half=False, old="trainer"), kept)
    return torch.cat([value.grad.flatten() for value in adapter.weights(model).values()])


def between(shift):
    one, other = gradient("gspo", shift), gradient("grpo", shift)
    return ((one - other).norm() / one.norm()).item()


def resumed():
    """Whether a run that continues takes its ratios to the log-probabilities that it took them to before."""
    a = SimpleNamespace(loss="gspo", device="cpu", half=False, old="trainer", checkpoint=adapter_path + ".checkpoint", adapter=None)
    optimizer, kept = torch.optim.AdamW(adapter.weights(model).values()), {}
    reward_step(model, [([{**rows[0], "trajectory": 3, "old_log_probs": [0.0] * 109}], 1.0, 1.0)], a, kept)
    keep(model, optimizer, [], [], kept, a)
    again = resume(model, optimizer, a)[2]
    return list(again) == [3] and torch.equal(again[3], kept[3])


def devices():
    """Where the adapter puts its tokens, for a model on another device than the CPU. This device has shapes and no values."""
    head, made, tensor = torch.nn.Linear(16, 400, bias=False, device="meta"), [], torch.tensor
    with patch.object(torch, "tensor", lambda *given, **named: made.append(tensor(*given, **named)) or made[-1]):
        adapter.Rows(head, [7, 9])
        try:
            adapter.unlearned(SimpleNamespace(lm_head=head), [7, 9])
        except NotImplementedError:
            pass  # a mask without values chooses nothing
    return [each.device.type for each in made]


def windowed():
    """Most difference between a tree and its snapshots apart, on a model of which every other layer sees 8 tokens."""
    shape = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Gemma3TextConfig(**shape, sliding_window=8, layer_types=["sliding_attention", "full_attention"], initializer_range=0.3)
    gemma = Gemma3ForCausalLM(config).eval()
    with torch.no_grad():
        return (said(gemma, rows, "cpu", False) - torch.cat([said(gemma, [row], "cpu", False) for row in rows])).abs().max().item()


print(json.dumps({
    "learned": len(together),
    "apart": (together - apart).abs().max().item(),
    "devices": devices(),
    "windowed": windowed(),
    "resumed": resumed(),
    "untaught": (attached - before).abs().max().item(),
    "unlearned": unlearned,
    "before": before.tolist(),
    "after": after.tolist(),
    "off": (off - before).abs().max().item(),
    "distance": [distance, stepped],
    "slopes": min(slopes),
    "rewards": [between(shift) for shift in (0, 0.1, 0.3)],
}))  # fmt: skip
