"""Reads a GGUF file (version 3) back: metadata as Python values, tensors dequantised to float32 (F32, F16 and Q8_0)."""
import struct

import numpy as np

_SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9  # gguf_type
_F32, _F16, _Q8_0 = 0, 1, 8  # ggml_type


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind):
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.take("IQ")
            if inner in (_TEXT, _ARRAY):
                return [self.value(inner) for _ in range(count)]
            return list(struct.unpack("<%d%s" % (count, _SCALAR[inner]), self.raw(count * struct.calcsize("<" + _SCALAR[inner]))))
        return self.take(_SCALAR[kind])

    def raw(self, size):
        self.at += size
        return self.data[self.at - size : self.at]


def read(path):
    """(metadata by key, tensors by name in file order); a tensor is row-major with the slowest axis first, as PyTorch has it."""
    with open(path, "rb") as f:
        reader = Reader(f.read())
    magic, version, tensors, pairs = reader.take("4sIQQ")
    if magic != b"GGUF" or version != 3:
        raise SystemExit("%s is not a GGUF file of version 3" % path)
    metadata = {}
    for _ in range(pairs):
        key = reader.text()
        metadata[key] = reader.value(reader.take("I"))
    table = []
    for _ in range(tensors):
        name, axes = reader.text(), reader.take("I")
        shape = [reader.take("Q") for _ in range(axes)][::-1]
        table.append((name, shape, *reader.take("IQ")))
    align = metadata.get("general.alignment", 32)
    start = -(-reader.at // align) * align
    return metadata, {name: _array(reader.data, start + at, shape, kind, name) for name, shape, kind, at in table}


def _array(data, at, shape, kind, name):
    count = int(np.prod(shape))
    if kind == _F32:
        flat = np.frombuffer(data, "<f4", count, at)
    elif kind == _F16:
        flat = np.frombuffer(data, "<f2", count, at).astype(np.float32)
    elif kind == _Q8_0:
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("value", "i1", 32)]), count // 32, at)
        flat = blocks["value"] * blocks["scale"].astype(np.float32)[:, None]
    else:
        raise SystemExit("tensor %s has GGML type %d; this reads F32, F16 and Q8_0" % (name, kind))
    return flat.reshape(shape)
