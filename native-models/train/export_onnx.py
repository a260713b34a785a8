"""GGUF to a folder that Transformers.js loads: `python3 -m train.export_onnx` writes builtin/onnx from builtin/kvfold-tiny.gguf.

Weights are the GGUF's, dequantised to float32: a second engine for the same model. The same GGUF gives the same bytes.
"""
import argparse
import hashlib
import json
import os

import numpy as np

from . import gguf_read
from .hf_tokenizer import tokenizer_config, tokenizer_json
from .onnx_graph import Llama, Shape

BUILTIN = os.path.join(os.path.dirname(__file__), "..", "builtin")


def number(value):
    """The shortest decimal of a float32."""
    return float(str(np.float32(value)))


def config(metadata, tensors, shape):
    biased = "blk.0.attn_q.bias" in tensors
    return {
        # Of the two, Qwen2 is the one with biases on q, k and v (that of v is zero where the GGUF has none).
        "architectures": ["Qwen2ForCausalLM" if biased else "LlamaForCausalLM"],
        "model_type": "qwen2" if biased else "llama",
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": number(shape.eps),
        "rope_theta": number(shape.base),
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float32",
        "transformers.js_config": {"dtype": "fp32"},
        **ends(metadata),
    }


def ends(metadata):
    return {"bos_token_id": metadata["tokenizer.ggml.bos_token_id"], "eos_token_id": metadata["tokenizer.ggml.eos_token_id"]}


def save(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content if isinstance(content, bytes) else json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8") + b"\n")
    print("%s: %d bytes" % (path, os.path.getsize(path)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gguf", default=os.path.join(BUILTIN, "kvfold-tiny.gguf"))
    p.add_argument("--out", default=os.path.join(BUILTIN, "onnx"))
    p.add_argument("--no-tokenizer", action="store_true", help="leave the tokenizer out, for a GGUF with another kind of vocabulary")
    a = p.parse_args()
    metadata, tensors = gguf_read.read(a.gguf)
    with open(a.gguf, "rb") as f:
        source = hashlib.sha256(f.read()).hexdigest()
    shape = Shape(metadata)
    onnx = Llama(shape, tensors).build({"gguf_sha256": source})
    save(os.path.join(a.out, "config.json"), config(metadata, tensors, shape))
    save(os.path.join(a.out, "generation_config.json"), {"do_sample": False, **ends(metadata)})
    if not a.no_tokenizer:
        save(os.path.join(a.out, "tokenizer.json"), tokenizer_json(metadata))
        save(os.path.join(a.out, "tokenizer_config.json"), tokenizer_config(metadata))
    save(os.path.join(a.out, "onnx", "model.onnx"), onnx)


if __name__ == "__main__":
    main()
