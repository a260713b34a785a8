"""The model of a GGUF file of ours: its tensors by llama.cpp's names, to and from the model that is trained."""
import os

import torch

from . import gguf_read
from .model import Config, Model
from .words import Vocabulary, load_words

BUILTIN = os.path.join(os.path.dirname(__file__), "..", "builtin")
GGUF_PATH = os.path.join(BUILTIN, "kvfold-tiny.gguf")


def named(model):
    """The parameters by llama.cpp's names, but for the embedding."""
    parts = {"output_norm.weight": model.norm.weight}
    for n, layer in enumerate(model.layers):
        of = {
            "attn_norm.weight": layer.norm1.weight, "ffn_norm.weight": layer.norm2.weight,
            "attn_q.weight": layer.q.weight, "attn_q.bias": layer.q.bias, "attn_k.weight": layer.k.weight, "attn_k.bias": layer.k.bias,
            "attn_v.weight": layer.v.weight, "attn_output.weight": layer.o.weight,
            "ffn_gate.weight": layer.gate.weight, "ffn_up.weight": layer.up.weight, "ffn_down.weight": layer.down.weight,
        }  # fmt: skip
        parts.update({"blk.%d.%s" % (n, k): t for k, t in of.items()})
    return parts


def restored(tensors, config, vocabulary):
    """The model whose tensors, by llama.cpp's names, are given."""
    model = Model(config, vocabulary)
    table = torch.from_numpy(tensors["token_embd.weight"].copy())
    base, count = model.rows.shape[0], model.values.shape[0]
    in_stream, in_answer = table[base : base + count], table[base + count :]
    with torch.no_grad():
        model.rows.copy_(table[:base])
        model.forms[1] = (in_answer - in_stream).mean(0)
        model.values.copy_((in_stream + in_answer - model.forms[1]) / 2)
        for name, parameter in named(model).items():
            parameter.copy_(torch.from_numpy(tensors[name].copy()))
    return model


def begun(path):
    """The model of a GGUF file of ours, and its configuration."""
    about, weights = gguf_read.read(path)
    of = lambda key: about["llama." + key]  # noqa: E731
    config = Config(
        of("block_count"), of("embedding_length"), of("attention.head_count"), of("attention.key_length"), of("feed_forward_length"),
        of("rope.freq_base"), of("attention.layer_norm_rms_epsilon"), of("context_length"),
    )  # fmt: skip
    vocabulary = Vocabulary(load_words())
    return restored(weights, config, vocabulary), vocabulary
