"""A checkpoint of the last course from what is shipped: `python3 -m train.restore`, then `python3 -m train.train wider --tokens 90e6` goes on
with it. The optimizer and the order of the samples begin anew, and the weights have been rounded to F16.
"""
import argparse
import json
import os

import torch

from . import gguf_read
from .course import LAST
from .export import BUILTIN, GGUF_PATH, named
from .model import Config, Model
from .train import RUN, path_of
from .words import Vocabulary, load_words


def restored(tensors, config, vocabulary):
    """The model whose tensors, by llama.cpp's names, are given."""
    model = Model(config, vocabulary)
    table = torch.from_numpy(tensors["token_embd.weight"].copy())
    base, count = model.rows.shape[0], model.values.shape[0]
    in_stream, in_answer = table[base : base + count], table[base + count :]
    with torch.no_grad():
        model.rows.copy_(table[:base])
        model.forms[1] = (in_answer - in_stream).mean(0)
        model.values.copy_((in_stream + in_answer - model.forms[1]) / 2)
        for name, parameter in named(model).items():
            parameter.copy_(torch.from_numpy(tensors[name].copy()))
    return model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gguf", default=GGUF_PATH)
    p.add_argument("--manifest", default=os.path.join(BUILTIN, "manifest.json"))
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    path = path_of(a.run, LAST.name)
    if os.path.exists(path):
        raise SystemExit("%s is there already; move it away to begin with the weights of %s" % (path, a.gguf))
    with open(a.manifest, encoding="utf-8") as f:
        made = json.load(f)
    config = Config(*[made["architecture"][field] for field in Config._fields])
    *before, last = made["training"]["courses"]
    model = restored(gguf_read.read(a.gguf)[1], config, Vocabulary(load_words()))
    state = {
        "step": last["steps"], "tokens": last["tokens"], "kinds": last["tokensOf"], "samples": last["samplesOf"], "form": last["plainWithoutValues"],
        "wall": last["wallSeconds"], "cpu": last["cpuSeconds"], "loss": last["loss"], "warm": last["steps"], "before": before,
    }  # fmt: skip
    os.makedirs(a.run, exist_ok=True)
    torch.save({"model": model.state_dict(), "state": state, "config": tuple(config), "course": LAST.name}, path)
    print("%s: step %d, %.2fM tokens" % (path, state["step"], state["tokens"] / 1e6))


if __name__ == "__main__":
    main()
