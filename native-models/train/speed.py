"""How fast a training step is: `python3 -m train.speed` prints tokens a second of the shipped weights, without and with bfloat16, by processes.

Samples are those of the last course but for collected ones, the same in every run; times are of the processes (CPU) and of the clock.
"""
import argparse
import json
import time

import numpy as np
import torch

from .course import COLLECTED, Wider
from .data import Maker
from .shipped import GGUF_PATH, begun
from .tokenizer import Tokenizer
from .train import LEVEL, PRECISIONS, cost, learn
from .workers import Workers


def batches(vocabulary, tokens, batch, processes):
    course, maker = Wider.__new__(Wider), Maker(vocabulary.words, Tokenizer(vocabulary), 1, Wider.alike)
    share = {kind: part for kind, part in Wider.share.items() if kind.split("-")[0] not in COLLECTED}
    course.read, mixed, made = {}, dict.fromkeys(share, 0), []
    while sum(mixed.values()) < tokens:
        parts, costs = [[] for _ in range(processes)], [0.0] * processes
        while min(costs) < max(batch / processes, LEVEL * max(costs)):
            kind = min(share, key=lambda k: mixed[k] / share[k])
            sample = course.draw(kind, maker, 0.5)
            least = costs.index(min(costs))
            parts[least].append(sample)
            costs[least] += cost(sample)
            mixed[kind] += len(sample.ids)
        made.append(parts)
    return made


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", type=float, default=60e3)
    p.add_argument("--batch", type=int, default=3200)
    p.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    p.add_argument("--products", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model, vocabulary = begun(GGUF_PATH)
    model.parts = np.isin(np.arange(len(vocabulary)), list(vocabulary.parts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0)
    for processes in a.processes:
        made, compute = batches(vocabulary, a.tokens, a.batch, processes), Workers(model, processes)
        count = sum(len(s.ids) for parts in made for part in parts for s in part)
        for products in a.products:
            learn(model, made[0], compute, 0.5, PRECISIONS[products])
            clock, cpu = time.perf_counter(), compute.seconds()
            for parts in made:
                learn(model, parts, compute, 0.5, PRECISIONS[products])
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            clock, cpu = time.perf_counter() - clock, compute.seconds() - cpu
            print(json.dumps({"processes": processes, "products": products, "tokens": count, "perSecond": round(count / clock), "perCpuSecond": round(count / cpu)}), flush=True)


if __name__ == "__main__":
    main()
