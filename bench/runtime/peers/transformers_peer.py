"""Gemma 3 by Hugging Face's transformers on the values of a GGUF: what it predicts after given prompts, to compare with.

python transformers_peer.py MODEL.gguf < {"prompts": [[token, ...], ...], "top": 200, "likeliest": 20}
    > {"transformers": "...", "torch": "...", "logprobs": [{token: nats, ...}, ...], "tokenByToken": {"gelu": nats, "table": nats}}

`tokenByToken`: how far the first prompt read a token at a time is from the same read at once, over its likeliest tokens; with GELU computed in F32, and with its
argument and value rounded to F16, as the table is that llama.cpp looks it up in (ggml/src/ggml-cpu/vec.h, GGML_GELU_FP16).

Needs torch, transformers and gguf. Knows the architecture gemma3 alone; weights, their names and what llama.cpp changed in them are read here, not by kvfold.
"""

import json
import sys

import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig

LAYER = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def name_of(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    return f"{WHOLE[parts[0]]}.weight"


def load(path: str) -> Gemma3ForCausalLM:
    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "gemma3":
        raise SystemExit(f"{path} is {architecture}; only gemma3 is known here.")

    def fact(name: str):
        return reader.fields[f"gemma3.{name}"].contents()

    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).float()
        # The GGUF has the factor of a norm, the checkpoint what is to be added to 1.
        weights[name_of(tensor.name)] = values - 1 if "norm" in tensor.name else values
    embeddings = weights["model.embed_tokens.weight"]
    layers = fact("block_count")
    config = Gemma3TextConfig(
        vocab_size=embeddings.shape[0],
        hidden_size=fact("embedding_length"),
        intermediate_size=fact("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=fact("attention.head_count"),
        num_key_value_heads=fact("attention.head_count_kv"),
        head_dim=fact("attention.key_length"),
        query_pre_attn_scalar=fact("attention.key_length"),
        max_position_embeddings=fact("context_length"),
        rms_norm_eps=fact("attention.layer_norm_rms_epsilon"),
        sliding_window=fact("attention.sliding_window"),
        layer_types=["full_attention" if at % 6 == 5 else "sliding_attention" for at in range(layers)],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": fact("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).float()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights do not fit: {missing} are missing, {unexpected} are too many.")
    model.tie_weights()
    return model.eval()


class TableGelu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, found))


def logprobs(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits[0, -1].double(), 0)


def whole(model: Gemma3ForCausalLM, prompt: list[int]) -> torch.Tensor:
    return logprobs(model(torch.tensor([prompt]), logits_to_keep=1, use_cache=False).logits)


def token_by_token(model: Gemma3ForCausalLM, prompt: list[int]) -> torch.Tensor:
    cache = DynamicCache(config=model.config)
    for token in prompt:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
    return logprobs(out.logits)


def difference(model: Gemma3ForCausalLM, prompt: list[int], likeliest: int) -> float:
    once = whole(model, prompt)
    return (once - token_by_token(model, prompt))[once.topk(likeliest).indices].abs().max().item()


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    model = load(sys.argv[1])
    found = [whole(model, prompt).topk(asked["top"]) for prompt in asked["prompts"]]
    first = asked["prompts"][0]
    apart = {"gelu": difference(model, first, asked["likeliest"])}
    for layer in model.model.layers:
        layer.mlp.act_fn = TableGelu()
    apart["table"] = difference(model, first, asked["likeliest"])
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    said = [dict(zip(most.indices.tolist(), most.values.tolist())) for most in found]
    json.dump({**versions, "logprobs": said, "tokenByToken": apart}, sys.stdout)


main()
