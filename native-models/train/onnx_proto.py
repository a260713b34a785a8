"""Writes ONNX models: the few messages of onnx.proto3 that a graph needs, in protobuf's wire format, with the same bytes every time.

A message is bytes; `field` makes one field of it. Numbers of fields are those of onnx.proto3.
"""
import struct

import numpy as np

FLOAT, INT64, BOOL, DOUBLE = 1, 7, 9, 11  # TensorProto.DataType
_TYPE = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.float64): DOUBLE}


def _varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, value):
    """int: varint; float: 32 bits; str and bytes: length-delimited; list: one field for each."""
    if isinstance(value, list):
        return b"".join(field(number, v) for v in value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    raw = value.encode("utf-8") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def tensor(name, array):
    """TensorProto: raw little-endian data."""
    array = np.asarray(array)
    raw = np.ascontiguousarray(array).tobytes()
    return field(1, [int(d) for d in array.shape]) + field(2, _TYPE[array.dtype]) + field(8, name) + field(9, raw)


def attribute(name, value):
    """AttributeProto of an int, a float or a list of ints."""
    if isinstance(value, list):
        return field(1, name) + field(8, value) + field(20, 7)
    number, kind = (3, 2) if isinstance(value, int) else (2, 1)
    return field(1, name) + field(number, value) + field(20, kind)


def node(kind, name, inputs, outputs, attributes):
    parts = field(1, inputs) + field(2, outputs) + field(3, name) + field(4, kind)
    return parts + b"".join(field(5, attribute(k, v)) for k, v in sorted(attributes.items()))


def port(name, kind, shape):
    """ValueInfoProto of an input or output; a dimension is a number or the name of one."""
    dims = b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, dims)))


def model(graph, opset, properties):
    """ModelProto around a GraphProto; IR version 8 is the one of opset 17."""
    pairs = b"".join(field(14, field(1, k) + field(2, v)) for k, v in properties.items())
    return field(1, 8) + field(2, "kvfold") + field(7, graph) + field(8, field(1, "") + field(2, opset)) + pairs
