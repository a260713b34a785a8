"""Writes the tokenizer of a GGUF as a folder that transformers loads: `python tokenizer.py MODEL.gguf FOLDER`. It takes models with a byte-level BPE. Numbers
may be split otherwise than by the model; the benchmark counts the server's tokens."""

import sys

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONTROL = 3

model, folder = sys.argv[1:]
fields = GGUFReader(model).fields


def field(name):
    return fields[f"tokenizer.ggml.{name}"].contents()


if field("model") != "gpt2":
    sys.exit(f"{model} has no byte-level BPE; take another model, or give the harness a tokenizer.")
tokens = field("tokens")
merges = [tuple(merge.split(" ")) for merge in field("merges")]
tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens([token for token, kind in zip(tokens, field("token_type")) if kind == CONTROL])
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tokens[field("eos_token_id")]).save_pretrained(folder)
