"""Closed-loop evaluation on held-out streams: `python3 -m train.evaluate` prints a table and stores it beside the checkpoint."""
import argparse
import json
import os
import random
import time

import torch

from . import agents
from .course import LAST
from .generate import Generator
from .stream import make_stream
from .train import RUN, load, path_of
from .words import load_words

FIRST_SEED = 1_000_000  # training draws from one generator seeded with a small number; these streams are never among its draws


def score(stream, outcome):
    """Right answers, wrong answers, and how many of the wrong ones are an older value of the same key."""
    right = sum(outcome.answers.get(k) == v[-1] for k, v in stream.values.items())
    older = sum(outcome.answers.get(k) in v[:-1] for k, v in stream.values.items())
    return right, len(stream.values) - right, older


def evaluate(generator, n, samples, keys=46, log=None):
    words, rows = load_words(), {}
    for agent in ("plain", "tools"):
        right = wrong = older = clean = tokens = 0
        for s in range(samples):
            rng = random.Random(FIRST_SEED + 1000 * n + s)
            stream = make_stream(words, rng, keys, n)
            outcome = agents.plain(generator, stream) if agent == "plain" else agents.with_tools(generator, stream, rng)
            a, b, c = score(stream, outcome)
            right, wrong, older = right + a, wrong + b, older + c
            clean, tokens = clean + outcome.clean, tokens + outcome.tokens
        rows[agent] = {
            "accuracy": round(right / (right + wrong), 4),
            "older": round(older / wrong, 3) if wrong else None,
            "clean": round(clean / samples, 4),
            "tokens": round(tokens / samples),
        }
    if log:
        p, t = rows["plain"], rows["tools"]
        log(
            "n %3d | plain %.3f (%d tokens, errors that are older values: %s) | tools %.3f (%d tokens, older: %s, clean loops %.3f)"
            % (n, p["accuracy"], p["tokens"], p["older"], t["accuracy"], t["tokens"], t["older"], t["clean"])
        )
    return {"n": n, "samples": samples, **rows}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint", default=path_of(RUN, LAST.name))
    p.add_argument("--samples", type=int, default=20)
    p.add_argument("--n", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model, tokenizer, state = load(a.checkpoint)
    generator, start = Generator(model, tokenizer), time.time()
    print("step %d, %.2fM tokens" % (state["step"], state["tokens"] / 1e6))
    table = [evaluate(generator, n, a.samples, log=lambda line: print(line, flush=True)) for n in a.n]
    with open(os.path.join(os.path.dirname(a.checkpoint), "evaluation.json"), "w", encoding="utf-8") as f:
        json.dump({"step": state["step"], "seconds": round(time.time() - start), "table": table}, f, indent=1)


if __name__ == "__main__":
    main()
