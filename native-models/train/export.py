"""Checkpoint to GGUF: `python3 -m train.export` writes builtin/kvfold-tiny.gguf in F16 (norms and biases in F32)."""
import argparse
import os

import numpy as np
import torch

from . import gguf
from .course import Everything, LAST
from .shipped import GGUF_PATH, named
from .tokenizer import Tokenizer
from .train import RUN, begin, load, path_of
from .words import Vocabulary, load_words

HERE = os.path.dirname(__file__)


def metadata(config, vocabulary):
    with open(os.path.join(HERE, "template.jinja"), encoding="utf-8") as f:
        template = f.read().rstrip("\n")
    tokens = vocabulary.tokens
    return [
        ("general.architecture", "str", "llama"),
        ("general.type", "str", "model"),
        ("general.name", "str", "kvfold-tiny"),
        ("general.description", "str", "Reads streams of updates, chains of relatives and alike texts, plainly or with context tools."),
        ("general.license", "str", "mit"),
        ("general.file_type", "u32", 1),
        ("llama.block_count", "u32", config.layers),
        ("llama.context_length", "u32", config.context),
        ("llama.embedding_length", "u32", config.width),
        ("llama.feed_forward_length", "u32", config.hidden),
        ("llama.attention.head_count", "u32", config.heads),
        ("llama.attention.head_count_kv", "u32", config.heads),
        ("llama.attention.key_length", "u32", config.head),
        ("llama.attention.value_length", "u32", config.head),
        ("llama.attention.layer_norm_rms_epsilon", "f32", config.eps),
        ("llama.rope.dimension_count", "u32", config.head),
        ("llama.rope.freq_base", "f32", config.rope_base),
        ("llama.vocab_size", "u32", len(tokens)),
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.pre", "str", "default"),
        ("tokenizer.ggml.tokens", "[str]", [t.text for t in tokens]),
        ("tokenizer.ggml.scores", "[f32]", [t.score for t in tokens]),
        ("tokenizer.ggml.token_type", "[i32]", [t.kind for t in tokens]),
        ("tokenizer.ggml.bos_token_id", "u32", vocabulary.start),
        ("tokenizer.ggml.eos_token_id", "u32", vocabulary.end),
        ("tokenizer.ggml.eot_token_id", "u32", vocabulary.end),
        ("tokenizer.ggml.unknown_token_id", "u32", 0),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.ggml.add_eos_token", "bool", False),
        ("tokenizer.ggml.add_space_prefix", "bool", False),
        ("tokenizer.chat_template", "str", template),
    ]


def tensors(model, half=True):
    """Matrices in F16, or all of it in F32. The rotary order is already llama.cpp's (see model.rotate)."""
    arrays = {k: t.detach().numpy().astype(np.float32) for k, t in {"token_embd.weight": model.table(), **named(model)}.items()}
    return {k: a.astype(np.float16) if half and a.ndim == 2 else a for k, a in arrays.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint", default=path_of(RUN, LAST.name))
    p.add_argument("--begin", action="store_true", help="the model before the first step of that course instead: it knows its words")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default=GGUF_PATH)
    a = p.parse_args()
    if a.begin:
        tokenizer, state = Tokenizer(Vocabulary(load_words())), {"step": 0, "tokens": 0}
        model = begin(Everything, tokenizer.vocabulary, a.seed, os.path.dirname(a.checkpoint))
    else:
        model, tokenizer, state = load(a.checkpoint)
    os.makedirs(os.path.dirname(a.out), exist_ok=True)
    gguf.write(a.out, metadata(model.config, tokenizer.vocabulary), tensors(model))
    print("%s: %d bytes, step %d, %.2fM tokens" % (a.out, os.path.getsize(a.out), state["step"], state["tokens"] / 1e6))


if __name__ == "__main__":
    main()
