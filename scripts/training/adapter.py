"""LoRA adapters: small matrices that learn beside a model's own weights, which stay as they are. Written as GGUF for `--lora`.

A model has rows in its output matrix for tokens that it never learned to write, such as Qwen2.5-Coder's <tool_call>. Thousands of these
rows are alike, so that no change inside the model makes one of the tokens likely. The adapter changes the rows of those it needs.
"""
import re
from contextlib import contextmanager

import numpy as np
import torch
from gguf import GGUFWriter
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer

from names import LINEAR

LAYERS = {theirs: ours for ours, theirs in LINEAR.items()}
# transformers' names of models whose rows llama.cpp keeps in the same order, and llama.cpp's. (It reorders those of `llama`.)
MODELS = {"qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}


ALIKE = 0.05  # two rows are alike when their distance is below this share of their length
CROWD = 100  # a token is never learned when so many other rows are like its own


@torch.no_grad()
def unlearned(model, tokens):
    """Those of these tokens that the model cannot write, because many rows of its output are alike, as a sorted list."""
    rows, tokens = model.lm_head.weight.float(), torch.tensor(sorted(set(tokens)), device=model.lm_head.weight.device)
    squares = rows.square().sum(1)
    distance = lambda some: squares[:, None] + squares[some] - 2 * rows @ rows[some].T
    near = [(distance(some) < ALIKE**2 * squares[some]).sum(0) for some in tokens.split(64)]
    return tokens[torch.cat(near) > CROWD].tolist()


class Rows(torch.nn.Module):
    """What is added to the output's rows of some tokens. Zero at first."""

    def __init__(self, head, tokens):
        super().__init__()
        self.is_on = True
        self.register_buffer("tokens", torch.tensor(tokens, device=head.weight.device))
        self.change = torch.nn.Parameter(torch.zeros(len(tokens), head.in_features, device=head.weight.device))
        head.register_forward_hook(lambda _, states, logits: self.changed(states[0], logits) if self.is_on else None)

    def changed(self, states, logits):
        return logits.index_add(-1, self.tokens, (states @ self.change.T.to(states.dtype)).to(logits.dtype))


def attach(model, rank, last, half, tokens=()):
    """Adds an adapter of this rank to all linear layers of the last `last` blocks, or of all blocks (0). Its scale is 2. Only it learns.

    `half`: the model's own weights are kept in bfloat16. `tokens`: tokens that it shall be able to write; see `unlearned`.
    """
    if model.config.model_type not in MODELS:
        raise SystemExit("--lora knows %s, and this model is %s; leave --lora out" % (", ".join(MODELS), model.config.model_type))
    count = model.config.num_hidden_layers
    chosen = list(range(count - last if last else 0, count))
    names = [name.split(".")[1] for name in LAYERS]
    taught = unlearned(model, tokens)
    get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names, layers_to_transform=chosen))
    if taught:
        model.rows = Rows(model.lm_head, taught)
    if half:
        for value in model.parameters():
            if not value.requires_grad:
                value.data = value.data.to(torch.bfloat16)


@contextmanager
def off(model):
    """The model within is as it was before the adapter."""
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    rows = [model.rows] if hasattr(model, "rows") else []

    def switch(on):
        for layer in layers:
            layer.enable_adapters(on)
        for each in rows:
            each.is_on = on

    switch(False)
    try:
        yield
    finally:
        switch(True)


def weights(model):
    """The adapter's parameters by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def write(model, path, about):
    """Writes the adapter as a GGUF file in F16, as llama.cpp's llama-adapter.cpp reads it. `about`: the name of the base, for `general.name`."""
    made = {name: value.detach().cpu().numpy() for name, value in weights(model).items()}
    rank = next(value.shape[0] for name, value in made.items() if ".lora_A." in name)
    writer = GGUFWriter(path, MODELS[model.config.model_type])
    writer.add_type("adapter")
    writer.add_name(about)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    if "rows.change" in made:
        # A product of two matrices, of which the second only says whose rows the first has. It takes the adapter's scale back.
        change = made.pop("rows.change")
        places = np.zeros((model.config.vocab_size, len(change)), np.float16)
        places[model.rows.tokens.cpu().numpy(), range(len(change))] = len(change) / (2.0 * rank)
        writer.add_tensor("output.weight.lora_a", change.astype(np.float16))
        writer.add_tensor("output.weight.lora_b", places)
    for name, value in made.items():
        layer, linear, side = re.search(r"layers\.(\d+)\.(\w+\.\w+)\.lora_([AB])\.", name).groups()
        writer.add_tensor("blk.%s.%s.weight.lora_%s" % (layer, LAYERS[linear], side.lower()), value.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
