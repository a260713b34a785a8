"""A Llama (RMSNorm, rotary positions, SwiGLU, grouped queries, biases where the GGUF has them) as an ONNX graph that gives its attention away.

Ports are those that Transformers.js feeds and reads of a decoder: past and present keys and values, positions, and a mask over past
and new tokens. `attentions.N` is layer N after the softmax, [batch, head, query, key].
"""
import functools
import math

import numpy as np

from . import onnx_proto as proto

OPSET = 17
LOWEST = np.float32(np.finfo(np.float32).min)


class Shape:
    """What a GGUF of architecture "llama" says about its layers."""

    def __init__(self, metadata):
        arch = metadata["general.architecture"]
        if arch not in ("llama", "qwen2"):
            raise SystemExit("the architecture is %s; this export knows llama and qwen2" % arch)
        if any(".rope.scaling." in key for key in metadata):
            raise SystemExit("the model scales its rotary positions; this export does not")

        def get(key, *default):
            return metadata.get("%s.%s" % (arch, key), *default)

        self.interleaved = arch == "llama"  # llama.cpp turns neighbouring pairs in llama, halves in qwen2
        self.layers, self.width, self.hidden = get("block_count"), get("embedding_length"), get("feed_forward_length")
        self.heads, self.context = get("attention.head_count"), get("context_length")
        self.kv = get("attention.head_count_kv", self.heads)
        self.head = get("attention.key_length", self.width // self.heads)
        self.eps, self.base = get("attention.layer_norm_rms_epsilon"), get("rope.freq_base", 10000.0)
        if get("attention.value_length", self.head) != self.head or get("rope.dimension_count", self.head) != self.head:
            raise SystemExit("keys, values and rotary positions must have the same width in a head")


class Graph:
    """Collects nodes and weights; a value is known by its name."""

    def __init__(self):
        self.nodes, self.weights, self.names = [], {}, {}

    def name(self, base):
        self.names[base] = self.names.get(base, 0) + 1
        return "%s.%d" % (base, self.names[base])

    def add(self, kind, *inputs, outputs=1, out=None, **attributes):
        made = [out] if out else [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(proto.node(kind, "node." + made[0], list(inputs), made, attributes))
        return made[0] if len(made) == 1 else made

    def weight(self, name, array):
        self.weights[name] = array
        return name

    def const(self, *values, kind=np.int64):
        """A tensor of numbers: of one axis, or a scalar if one bare value is given as a NumPy scalar."""
        array = values[0] if isinstance(values[0], np.generic) else np.array(values, kind)
        name = "const.%s.%s" % (array.dtype, "_".join(str(v) for v in np.atleast_1d(array)) + ("" if array.ndim else ".scalar"))
        return self.weight(name, np.asarray(array))


def same(array):
    return array


def halves(array, heads):
    """Rows of a q or k projection from llama.cpp's order (neighbours are a pair) to halves (row i pairs with i + head / 2)."""
    rows = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.moveaxis(rows, 2, 1).reshape(array.shape)


class Llama:
    """`tensors`: by their GGUF names; `bytes()` is the model. A tensor that the graph has no place for is refused."""

    def __init__(self, shape, tensors):
        self.s, self.tensors, self.unused, self.g = shape, tensors, set(tensors), Graph()

    def build(self, properties):
        s, g = self.s, self.g
        batch, new, past, total = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
        inputs = [("input_ids", proto.INT64, [batch, new]), ("attention_mask", proto.INT64, [batch, total])]
        inputs += [("position_ids", proto.INT64, [batch, new]), ("num_logits_to_keep", proto.INT64, [])]
        outputs = [("logits", proto.FLOAT, [batch, "logits", self.tensors["token_embd.weight"].shape[0]])]
        for n in range(s.layers):
            for part in ("key", "value"):
                inputs.append(("past_key_values.%d.%s" % (n, part), proto.FLOAT, [batch, s.kv, past, s.head]))
                outputs.append(("present.%d.%s" % (n, part), proto.FLOAT, [batch, s.kv, total, s.head]))
        outputs += [("attentions.%d" % n, proto.FLOAT, [batch, s.heads, new, total]) for n in range(s.layers)]

        table = self.take("token_embd.weight", "model.embed_tokens.weight")
        x = g.add("Gather", table, "input_ids")
        visible, turn = self.visible(), self.turn()
        for n in range(s.layers):
            x = self.layer(n, x, visible, turn)
        keep = g.add("Slice", self.norm(x, "output_norm", "model.norm"), *self.last("num_logits_to_keep"))
        untied = "output.weight" in self.tensors
        head = self.take("output.weight", "lm_head.weight") if untied else table
        g.add("MatMul", keep, g.add("Transpose", head, perm=[1, 0]), out="logits")
        if self.unused:
            raise SystemExit("the graph has no place for %s" % ", ".join(sorted(self.unused)))

        weights = [proto.tensor(name, array) for name, array in g.weights.items()]
        ports = [[proto.port(*p) for p in side] for side in (inputs, outputs)]
        body = proto.field(1, g.nodes) + proto.field(2, "llama") + proto.field(5, weights) + proto.field(11, ports[0])
        return proto.model(body + proto.field(12, ports[1]), OPSET, properties)

    def take(self, name, to, change=same):
        self.unused.discard(name)
        return self.g.weight(to, np.ascontiguousarray(change(self.tensors[name])))

    def last(self, count):
        """Slice arguments for the last `count` tokens; 0: all of them."""
        g = self.g
        start = g.add("Neg", g.add("Unsqueeze", count, g.const(0)))
        return start, g.const(np.iinfo(np.int64).max), g.const(1)

    def visible(self):
        """[batch, 1, query, key]: a key is not masked out and stands at or before the query. Places, not positions, count: those may have gaps."""
        g = self.g
        total = g.add("Shape", "attention_mask", start=1, end=2)
        fresh = g.add("Shape", "input_ids", start=1, end=2)
        zero, one, end = g.const(np.int64(0)), g.const(np.int64(1)), g.add("Squeeze", total)
        keys = g.add("Range", zero, end, one)
        queries = g.add("Range", g.add("Squeeze", g.add("Sub", total, fresh)), end, one)
        causal = g.add("LessOrEqual", keys, g.add("Unsqueeze", queries, g.const(1)))
        shown = g.add("Unsqueeze", g.add("Cast", "attention_mask", to=proto.BOOL), g.const(1, 2))
        return g.add("And", causal, shown)

    def turn(self):
        """Cosine and sine of every position, [batch, 1, query, head / 2]. Angles in float64: float32 is 1e-3 rad off at position 16,384."""
        g, half = self.g, self.s.head // 2
        speed = g.weight("model.rotary_emb.speed", np.array([float(self.s.base) ** (-i / half) for i in range(half)]))  # NumPy's own power is not the same in every release
        place = g.add("Cast", g.add("Unsqueeze", "position_ids", g.const(1, 3)), to=proto.DOUBLE)
        angle = g.add("Mod", g.add("Mul", place, speed), g.const(np.float64(2 * math.pi)), fmod=1)
        angle = g.add("Cast", angle, to=proto.FLOAT)
        return g.add("Cos", angle), g.add("Sin", angle)

    def norm(self, x, name, to):
        g = self.g
        mean = g.add("ReduceMean", g.add("Mul", x, x), axes=[-1], keepdims=1)
        root = g.add("Sqrt", g.add("Add", mean, g.const(np.float32(self.s.eps))))
        return g.add("Mul", g.add("Div", x, root), self.take(name + ".weight", to + ".weight"))

    def linear(self, x, name, to, change=same):
        product = self.g.add("MatMul", x, self.take(name + ".weight", to + ".weight", lambda a: change(a).T))
        if name + ".bias" not in self.tensors:
            return product
        return self.g.add("Add", product, self.take(name + ".bias", to + ".bias", change))

    def split(self, x, heads):
        """[batch, token, heads * head] to [batch, heads, token, head]."""
        return self.g.add("Transpose", self.g.add("Reshape", x, self.g.const(0, 0, heads, self.s.head)), perm=[0, 2, 1, 3])

    def order(self, heads):
        return functools.partial(halves, heads=heads) if self.s.interleaved else same

    def rotate(self, x, turn):
        g, (cos, sin) = self.g, turn
        a, b = g.add("Split", x, outputs=2, axis=-1)
        first = g.add("Sub", g.add("Mul", a, cos), g.add("Mul", b, sin))
        second = g.add("Add", g.add("Mul", b, cos), g.add("Mul", a, sin))
        return g.add("Concat", first, second, axis=-1)

    def shared(self, x):
        """Keys or values once for every query head that reads them."""
        s, g = self.s, self.g
        if s.heads == s.kv:
            return x
        wide = g.add("Expand", g.add("Unsqueeze", x, g.const(2)), g.const(1, 1, s.heads // s.kv, 1, 1))
        return g.add("Reshape", wide, g.const(0, s.heads, -1, s.head))

    def layer(self, n, x, visible, turn):
        s, g = self.s, self.g
        ours, theirs = "blk.%d." % n, "model.layers.%d." % n
        y = self.norm(x, ours + "attn_norm", theirs + "input_layernorm")
        q = self.rotate(self.split(self.linear(y, ours + "attn_q", theirs + "self_attn.q_proj", self.order(s.heads)), s.heads), turn)
        k = self.rotate(self.split(self.linear(y, ours + "attn_k", theirs + "self_attn.k_proj", self.order(s.kv)), s.kv), turn)
        v = self.split(self.linear(y, ours + "attn_v", theirs + "self_attn.v_proj"), s.kv)
        k = g.add("Concat", "past_key_values.%d.key" % n, k, axis=2, out="present.%d.key" % n)
        v = g.add("Concat", "past_key_values.%d.value" % n, v, axis=2, out="present.%d.value" % n)
        scores = g.add("MatMul", q, g.add("Transpose", self.shared(k), perm=[0, 1, 3, 2]))
        scores = g.add("Mul", scores, g.const(np.float32(s.head**-0.5)))
        pattern = g.add("Softmax", g.add("Where", visible, scores, g.const(LOWEST)), axis=-1, out="attentions.%d" % n)
        heads = g.add("Transpose", g.add("MatMul", pattern, self.shared(v)), perm=[0, 2, 1, 3])
        flat = g.add("Reshape", heads, g.const(0, 0, s.heads * s.head))
        x = g.add("Add", x, self.linear(flat, ours + "attn_output", theirs + "self_attn.o_proj"))
        y = self.norm(x, ours + "ffn_norm", theirs + "post_attention_layernorm")
        gate = self.linear(y, ours + "ffn_gate", theirs + "mlp.gate_proj")
        up = self.linear(y, ours + "ffn_up", theirs + "mlp.up_proj")
        inner = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
        return g.add("Add", x, self.linear(inner, ours + "ffn_down", theirs + "mlp.down_proj"))
