"""LoRA adapters: small matrices that learn beside a model's own weights, which stay as they are. Written as GGUF for `--lora`."""
import re

import numpy as np
import torch
from gguf import GGUFWriter
from peft import LoraConfig, get_peft_model

from names import LINEAR

LAYERS = {theirs: ours for ours, theirs in LINEAR.items()}
# transformers' names of models whose rows llama.cpp keeps in the same order, and llama.cpp's. (It reorders those of `llama`.)
MODELS = {"qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}


def attach(model, rank, last, half):
    """Adds an adapter of this rank to all linear layers of the last `last` blocks, or of all blocks (0). Its scale is 2. Only it learns.

    `half`: the model's own weights are kept in bfloat16.
    """
    if model.config.model_type not in MODELS:
        raise SystemExit("--lora knows %s, and this model is %s; leave --lora out" % (", ".join(MODELS), model.config.model_type))
    count = model.config.num_hidden_layers
    chosen = list(range(count - last if last else 0, count))
    names = [name.split(".")[1] for name in LAYERS]
    get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names, layers_to_transform=chosen))
    if half:
        for value in model.parameters():
            if not value.requires_grad:
                value.data = value.data.to(torch.bfloat16)


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
    for name, value in made.items():
        layer, linear, side = re.search(r"layers\.(\d+)\.(\w+\.\w+)\.lora_([AB])\.", name).groups()
        writer.add_tensor("blk.%s.%s.weight.lora_%s" % (layer, LAYERS[linear], side.lower()), value.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
