"""A checkpoint of its last course from what is shipped: `python3 -m train.restore`, then `python3 -m train.train visiting --tokens 70e6` goes on
with it; or of other weights, by `--gguf` and `--manifest`. The optimizer and the order of the samples begin anew, and the weights have been rounded to F16.
"""
import argparse
import json
import os

import torch

from . import gguf_read
from .model import Config
from .shipped import BUILTIN, GGUF_PATH, restored
from .train import RUN, path_of
from .words import Vocabulary, load_words


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gguf", default=GGUF_PATH)
    p.add_argument("--manifest", default=os.path.join(BUILTIN, "manifest.json"))
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    with open(a.manifest, encoding="utf-8") as f:
        made = json.load(f)
    *before, last = made["training"]["courses"]
    path = path_of(a.run, last["name"])
    if os.path.exists(path):
        raise SystemExit("%s is there already; move it away to begin with the weights of %s" % (path, a.gguf))
    config = Config(*[made["architecture"][field] for field in Config._fields])
    model = restored(gguf_read.read(a.gguf)[1], config, Vocabulary(load_words()))
    state = {
        "step": last["steps"], "tokens": last["tokens"], "kinds": last["tokensOf"], "samples": last["samplesOf"], "form": last["plainWithoutValues"],
        "wall": last["wallSeconds"], "cpu": last["cpuSeconds"], "loss": last["loss"], "warm": last["steps"], "before": before, "made": last,
    }  # fmt: skip
    os.makedirs(a.run, exist_ok=True)
    torch.save({"model": model.state_dict(), "state": state, "config": tuple(config), "course": last["name"]}, path)
    print("%s: step %d, %.2fM tokens" % (path, state["step"], state["tokens"] / 1e6))


if __name__ == "__main__":
    main()
