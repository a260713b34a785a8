"""Puts weights that recipe.py has saved into the GGUF file that they began with: its tokenizer, template and settings stay, every tensor is F32.

python gguf_with.py FROM.gguf FOLDER TO.gguf; needs the packages gguf and safetensors. For Gemma 3 (`NAMES`).
"""

import glob
import os
import re
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from safetensors.numpy import load_file

from names import LINEAR

LEFT_OUT = ("general.architecture", "general.file_type")  # the writer has calls of its own for these
NAMES = {
    **LINEAR,
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def name_of(tensor):
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor)
    return WHOLE[tensor] if layer is None else "model.layers.%s.%s.weight" % (layer[1], NAMES[layer[2]])


source, folder, target = sys.argv[1:]
reader = GGUFReader(source)
kind = reader.fields["general.architecture"].contents()
trained = {name: values for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))) for name, values in load_file(path).items()}
writer = GGUFWriter(target, kind)
writer.add_file_type(0)
for field in reader.fields.values():
    if field.name.startswith("GGUF.") or field.name in LEFT_OUT:
        continue
    inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), field.types[0], inner)
most = 0.0
for tensor in reader.tensors:
    old = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    # Norms are one less in transformers.
    new = trained[name_of(tensor.name)].astype(np.float32) + tensor.name.endswith("norm.weight")
    if new.shape != old.shape:
        raise SystemExit("%s has the shape %s in %s, and %s in %s" % (tensor.name, new.shape, folder, old.shape, source))
    most = max(most, float(np.abs(new - old).max()))
    writer.add_tensor(tensor.name, new)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print("a weight differs by %.3g at most" % most)
