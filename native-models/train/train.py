"""Training: `python3 -m train.train streams`, `everything` and so on (from native-models/; see course.py).

Resumes from its checkpoint; ctrl-C loses at most two minutes.
"""
import argparse
import json
import math
import os
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from . import flags
from . import format as fmt
from .circuit import initialise
from .course import COURSES, Everything, Passages, Streams, Wider, before
from .data import Maker
from .grow import grown
from .model import Config, Model
from .passages import furthered
from .tokenizer import Tokenizer
from .wider import widened
from .words import Vocabulary, load_words
from .workers import Workers

RUN = os.path.join(os.path.dirname(__file__), ".run")
LOOKING = 2  # heads of the last layer that are told where to look
SAYING = 0.2  # how much it counts that what they carry is what is to be said, as a share of where they look
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FAST_HALF = {"amx_bf16", "avx512_bf16"}  # what says that a processor is faster in bfloat16
LEVEL = 0.7  # how much of the fullest thread's share every other has at least


def forward(model, samples, dtype=torch.float32):
    """The weighted sum of losses, how far attention is from where it should look (a sum), how far what it carries from there is from saying so (a
    sum), and per kind the hits and count among the tokens that matter."""
    spans, picks, at = [], [], 0
    for s in samples:
        spans.append((at, at + len(s.ids)))
        picks.append(torch.from_numpy(np.flatnonzero(s.weights) - 1))  # a token is predicted one place before it stands
        at += len(s.ids)
    ids = torch.from_numpy(np.concatenate([s.ids for s in samples]))
    positions = torch.from_numpy(np.concatenate([s.positions for s in samples]))
    target = torch.cat([torch.from_numpy(s.ids)[p + 1] for s, p in zip(samples, picks)])
    weight = torch.cat([torch.from_numpy(s.weights)[p + 1] for s, p in zip(samples, picks)])
    last = len(model.layers) - 1
    looks = {last - 1: (1, [tuple(torch.from_numpy(s.steps).unbind(1)) for s in samples]), last: (LOOKING, [])}
    for s, p in zip(samples, picks):
        told = torch.from_numpy(np.concatenate((s.looks, s.hints)))
        looks[last][1].append((torch.searchsorted(p, told[:, 0].contiguous() - 1), told[:, 1].contiguous()))
    logits, astray, carried = model(ids, positions, spans, picks, looks=looks, dtype=dtype)
    said = torch.cat([torch.from_numpy(s.ids[s.looks[:, 0]]) for s in samples])
    copied = torch.cat([torch.arange(len(s.looks) + len(s.hints)) < len(s.looks) for s in samples])
    unsaid = F.cross_entropy(carried[copied], said, reduction="sum")
    loss = F.cross_entropy(logits, target, reduction="none")
    hit = (logits.detach().argmax(-1) == target).numpy()
    scores, at = {}, 0
    for s, p in zip(samples, picks):
        full = s.weights[p.numpy() + 1] >= (0.5 if s.kind == "noise" else 1)
        if s.kind in ("plain", "folded"):
            full &= model.parts[s.ids[p.numpy() + 1]]  # values only: the key list is much easier
        number = (s.weights[p.numpy() + 1] > 1) & (s.kind == "cut")
        if number.any():
            add(scores, "number", hit[at : at + len(p)][number])
        add(scores, s.kind, hit[at : at + len(p)][full])
        at += len(p)
    return (loss * weight).sum(), astray, unsaid, scores


def add(scores, kind, hits):
    good, count = scores.get(kind, (0, 0))
    scores[kind] = (good + int(hits.sum()), count + len(hits))


def cost(sample):
    """What a sample takes, in tokens of a short one."""
    return len(sample.ids) * (1 + len(sample.ids) / 6000)


class Share(NamedTuple):
    """What a part gives to a step: its gradients, losses and scores. `total`, `told`, `carried`: what the losses of all parts are divided by."""

    look: float
    dtype: torch.dtype
    total: float
    told: int
    carried: int

    def __call__(self, model, part):
        loss, astray, unsaid, scores = forward(model, part, self.dtype)
        whole = loss / self.total + self.look * (astray / self.told + SAYING * unsaid / self.carried)
        gradients = torch.autograd.grad(whole, list(model.parameters()))
        return gradients, (loss.item() / self.total, astray.item() / self.told, unsaid.item() / self.carried), scores


def learn(model, parts, compute, look, dtype=torch.float32):
    """Gradients of the weighted mean loss of all parts, which `compute` (see workers.py) has computed; the loss, how far attention is from where it
    should look and what it carries from there from saying so, which count `look` and `SAYING` of it, and the scores."""
    total = float(sum(s.weights.sum() for part in parts for s in part))
    told = max(1, sum(LOOKING * (len(s.looks) + len(s.hints)) + len(s.steps) for part in parts for s in part))
    carried = max(1, sum(len(s.looks) for part in parts for s in part))
    gradients, losses, scores = zip(*compute(model, Share(look, dtype, total, told, carried), parts))
    for n, parameter in enumerate(model.parameters()):
        parameter.grad = sum(g[n] for g in gradients[1:]) + gradients[0][n]
    merged = {}
    for some in scores:
        for kind, (good, count) in some.items():
            before = merged.get(kind, (0, 0))
            merged[kind] = (before[0] + good, before[1] + count)
    return *map(sum, zip(*losses)), merged


def rate(done, total, peak, step):
    """`step`: since the optimizer was new."""
    if done >= 0.4 * total:
        peak *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done / total - 0.4) / 0.6)))
    return peak * min(1, (step + 1) / 50)


def begin(course, vocabulary, seed, run):
    """The model before its first step: the circuit, or what the course before made, grown where this one has it so."""
    if course.name == Streams.name:
        model = Model(Config(), vocabulary)
        initialise(model, vocabulary, fmt, seed)
        return model
    old, tokenizer, _ = load(path_of(run, before(course).name))
    if course.name == Everything.name:
        return grown(old, [t.text for t in tokenizer.vocabulary.tokens], vocabulary, seed)
    if course.name in (Passages.name, Wider.name):
        enlarged = furthered if course.name == Passages.name else widened
        return enlarged(old, vocabulary, course.read["similar"].passages(course.fitted), seed)
    return old


def path_of(run, course):
    return os.path.join(run, course + ".pt")


def load(path):
    """Model, tokenizer and training state of a checkpoint."""
    saved = torch.load(path, map_location="cpu")
    vocabulary = Vocabulary(load_words(), reading=saved["course"] != Streams.name)
    model = Model(Config(*saved["config"]), vocabulary)
    model.load_state_dict(saved["model"])
    return model, Tokenizer(vocabulary), saved["state"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("course", choices=COURSES)
    p.add_argument("--tokens", type=float, help="prompt and completion tokens to train on")
    p.add_argument("--batch", type=int, default=3200, help="tokens a step, at least")
    p.add_argument("--peak", type=float)
    p.add_argument("--processes", type=int, help="that compute a step; default: as many as there are cores")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--products", choices=PRECISIONS, default="bfloat16" if FAST_HALF & set(flags()) else "float32", help="default: what the processor is fast with")
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    torch.set_num_threads(1)
    processes = a.processes or os.cpu_count() or 1
    torch.set_flush_denormal(True)  # sharp attention underflows; denormal numbers would make products fifty times slower
    torch.manual_seed(a.seed)
    os.makedirs(a.run, exist_ok=True)
    path = path_of(a.run, a.course)

    words = load_words()
    vocabulary = Vocabulary(words, reading=a.course != Streams.name)
    course = Streams() if a.course == Streams.name else COURSES[a.course](a.run, vocabulary)
    a.tokens, a.peak = a.tokens or course.tokens, a.peak or course.peak
    saved = torch.load(path) if os.path.exists(path) else None
    maker = Maker(words, Tokenizer(vocabulary), a.seed + (saved["state"]["step"] if saved else 0), course.alike)
    model = load(path)[0] if saved else begin(course, vocabulary, a.seed, a.run)
    model.parts = np.isin(np.arange(len(vocabulary)), list(vocabulary.parts))
    compute = Workers(model, processes)
    matrices = [t for t in model.parameters() if t.ndim == 2 and t.shape[0] not in (model.rows.shape[0], model.values.shape[0])]
    chosen = {id(t) for t in matrices}
    others = [t for t in model.parameters() if id(t) not in chosen]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.peak, betas=(0.9, 0.98))
    none = dict.fromkeys(course.share, 0)
    state = {"step": 0, "tokens": 0, "kinds": none, "samples": dict(none), "form": 0, "wall": 0.0, "cpu": 0.0, "loss": None, "warm": 0}
    if saved:
        state = saved["state"]
        for counted in ("kinds", "samples"):
            state[counted] = {**none, **state[counted]}
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
            course.__dict__.update(saved["progress"])
            maker.rng.setstate(saved["random"])
        print("resumed at step %d" % state["step"], flush=True)
    if state.get("share") != course.share:  # the mix is kept from here on
        state["share"], state["mixed"] = dict(course.share), dict(none)
    seen, mean, astray, unsaid, saved_at = {}, state["loss"], 0.0, 0.0, time.time()
    clock, cpu = time.time(), compute.seconds()

    def save():
        nonlocal clock, cpu
        state["wall"] += time.time() - clock
        state["cpu"] += compute.seconds() - cpu
        clock, cpu = time.time(), compute.seconds()
        state["loss"], state["settings"] = mean, vars(a)
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": state, "config": tuple(model.config)}
        kept.update(course=a.course, progress=course.progress(), random=maker.rng.getstate())
        torch.save(kept, path + ".new")
        os.replace(path + ".new", path)

    while state["tokens"] < a.tokens:
        parts, costs, size = [[] for _ in range(processes)], [0.0] * processes, 0
        while min(costs) < max(a.batch / processes, LEVEL * max(costs)):
            kind = min(course.share, key=lambda k: state["mixed"][k] / course.share[k])
            s = course.draw(kind, maker, state["tokens"] / a.tokens)
            least = costs.index(min(costs))
            parts[least].append(s)
            costs[least] += cost(s)
            size += len(s.ids)
            state["kinds"][kind] += len(s.ids)
            state["mixed"][kind] += len(s.ids)
            state["samples"][kind] += 1
            state["form"] += len(s.ids) if s.kind == "form" else 0
        for group in optimizer.param_groups:
            group["lr"] = rate(state["tokens"], a.tokens, a.peak, state["step"] - state["warm"])
        loss, away, not_said, scores = learn(model, parts, compute, course.look, PRECISIONS[a.products])
        astray, unsaid = astray + 0.02 * (away - astray), unsaid + 0.02 * (not_said - unsaid)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state["step"] += 1
        state["tokens"] += size
        mean = loss if mean is None else mean + 0.02 * (loss - mean)
        for kind, (good, count) in scores.items():
            seen[kind] = seen.get(kind, 0.0) + 0.05 * (good / max(1, count) - seen.get(kind, 0.0))
        course.learned(scores, size)
        if state["step"] % 25 == 0:
            spent = state["wall"] + time.time() - clock
            left = spent / state["tokens"] * (a.tokens - state["tokens"])
            shown = " ".join("%s %.3f" % (k, seen.get(k, 0)) for k in [*course.share, "number"])
            print(
                "step %d %s loss %.3f astray %.2f unsaid %.2f %s | %.2fM tokens, %.0f/s, %.0f min left"
                % (state["step"], course.said(), mean, astray, unsaid, shown, state["tokens"] / 1e6, state["tokens"] / spent, left / 60),
                flush=True,
            )
        if time.time() - saved_at > 120:
            save()
            saved_at = time.time()
    save()
    print(json.dumps({k: v for k, v in state.items() if k != "settings"}))


if __name__ == "__main__":
    main()
