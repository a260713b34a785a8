"""Writes a model of random weights as Hugging Face has them, for engines that take no GGUF: `python tiny_model.py OUT`. What it says means nothing; what
engines cache and report of it does not depend on that. Bytes are its tokens, with a chat template that shows tools and calls."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<|end|>", "<|tools|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]

out = Path(sys.argv[1])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={byte: at for at, byte in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(MARKS)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
fast.chat_template = TEMPLATE
torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=len(fast),
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=16384,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
    bos_token_id=None,
)
LlamaForCausalLM(config).save_pretrained(out)
fast.save_pretrained(out)
print(json.dumps({"tokens": len(fast), "parameters": sum(p.numel() for p in LlamaForCausalLM(config).parameters())}))
