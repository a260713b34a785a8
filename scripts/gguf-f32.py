"""Writes a GGUF again with every tensor in F32: the same values, computed without the rounding of quantised products.

python gguf-f32.py FROM TO; needs the package gguf.
"""

import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

LEFT_OUT = ("general.architecture", "general.file_type")  # the writer has calls of its own for these

source, target = sys.argv[1:]
reader = GGUFReader(source)
writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
writer.add_file_type(0)
for field in reader.fields.values():
    if field.name.startswith("GGUF.") or field.name in LEFT_OUT:
        continue
    inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), field.types[0], inner)
for tensor in reader.tensors:
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    writer.add_tensor(tensor.name, values)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
