"""Writes a GGUF file (version 3): header, metadata, tensor table, aligned tensor data."""
import struct

import numpy as np

ALIGN = 32
F32, F16 = 0, 1
_TYPE = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}


def _text(s):
    raw = s.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind, value):
    """Type tag and bytes of one metadata value; kind "str", a scalar of _TYPE, or either in [brackets] for an array."""
    if kind == "str":
        return struct.pack("<I", 8) + _text(value)
    if kind.startswith("["):
        inner = kind[1:-1]
        tag = 8 if inner == "str" else _TYPE[inner][0]
        body = b"".join(_text(v) if inner == "str" else struct.pack(_TYPE[inner][1], v) for v in value)
        return struct.pack("<IIQ", 9, tag, len(value)) + body
    tag, form = _TYPE[kind]
    return struct.pack("<I", tag) + struct.pack(form, value)


def write(path, metadata, tensors):
    """`metadata`: (key, kind, value) in order; `tensors`: name -> float32 or float16 array, row-major."""
    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        out += _text(key) + _value(kind, value)
    at = 0
    for name, array in tensors.items():
        kind = F16 if array.dtype == np.float16 else F32
        out += _text(name) + struct.pack("<I", array.ndim) + struct.pack("<%dQ" % array.ndim, *reversed(array.shape))
        out += struct.pack("<IQ", kind, at)
        at += -(-array.nbytes // ALIGN) * ALIGN
    with open(path, "wb") as f:
        f.write(out + b"\0" * (-len(out) % ALIGN))
        for array in tensors.values():
            raw = np.ascontiguousarray(array).tobytes()
            f.write(raw + b"\0" * (-len(raw) % ALIGN))
