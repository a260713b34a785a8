"""Training: `python3 -m train.train` (from native-models/). Resumes from its checkpoint; ctrl-C loses at most two minutes.

The mix is kept by counting: every step adds samples of the kind that is furthest below its share of all tokens so far.
Plain prompts get half, so that the comparison with and without tools is one between equally trained skills.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from . import format as fmt
from .circuit import initialise
from .data import MOST_FRAGMENTS, READ, Maker
from .model import Config, Model
from .tokenizer import Tokenizer
from .words import Vocabulary, load_words

SHARE = {"plain": 0.50, "cut": 0.24, "folded": 0.18, "ids": 0.05, "noise": 0.03}
STAGES = [(4, 2), (8, 4), (16, 6), (24, 8), (46, 8)]  # keys, most updates of a key
LONG = 66  # updates of a key, at most, in prompts whose values are not learned
RUN = os.path.join(os.path.dirname(__file__), ".run")


class Curriculum:
    """Which stage is trained: the next one starts when plain prompts of this one are read to 90 %, or after `limit` tokens."""

    def __init__(self, limit):
        self.stage, self.score, self.spent, self.limit = 0, 0.0, 0, limit

    def size(self, rng):
        stage = self.stage if rng.random() > 0.25 else rng.randrange(self.stage + 1)
        keys, n = STAGES[stage]
        return keys, rng.randint(2, n)

    def learned(self, accuracy, tokens):
        self.score += 0.05 * (accuracy - self.score)
        self.spent += tokens
        if self.stage + 1 < len(STAGES) and (self.score > 0.9 or self.spent > self.limit):
            self.stage, self.score, self.spent = self.stage + 1, 0.5, 0


def draw(kind, maker, curriculum):
    rng, chance = maker.rng, maker.rng.random()
    keys, n = curriculum.size(rng)
    late = curriculum.stage + 1 == len(STAGES)  # long prompts once short ones are read
    if kind == "ids":
        return maker.ids(rng.randint(2, MOST_FRAGMENTS)) if chance < 0.5 else maker.number()
    if kind == "noise":
        return maker.noise(rng.randint(8, 60))
    if kind == "plain":
        if late and chance < 0.03:
            return maker.plain(46, round(between(rng, READ + 1, LONG)))
        return maker.plain(keys, n, asked=1 if chance < 0.15 else None)
    if kind == "folded":
        return maker.folded(46, round(between(rng, READ + 1, LONG)), True) if late and chance < 0.7 else maker.folded(keys, n, False)
    if chance < 0.6:
        return maker.drill()
    if late and chance < 0.72:  # ids have to be found among thousands of other tokens
        return maker.cut(46, rng.randint(READ + 1, LONG))
    return maker.cut(keys, n)


def between(rng, low, high):
    """A number that is as likely between 8 and 16 as between 16 and 32."""
    return low * (high / low) ** rng.random()


def forward(model, samples):
    """Weighted mean loss, and per kind the hits and count among the tokens that matter."""
    spans, picks, at = [], [], 0
    for s in samples:
        spans.append((at, at + len(s.ids)))
        picks.append(torch.from_numpy(np.flatnonzero(s.weights) - 1))  # a token is predicted one place before it stands
        at += len(s.ids)
    ids = torch.from_numpy(np.concatenate([s.ids for s in samples]))
    positions = torch.from_numpy(np.concatenate([s.positions for s in samples]))
    target = torch.cat([torch.from_numpy(s.ids)[p + 1] for s, p in zip(samples, picks)])
    weight = torch.cat([torch.from_numpy(s.weights)[p + 1] for s, p in zip(samples, picks)])
    logits = model(ids, positions, spans, picks)
    loss = F.cross_entropy(logits, target, reduction="none")
    hit = (logits.detach().argmax(-1) == target).numpy()
    scores, at = {}, 0
    for s, p in zip(samples, picks):
        full = s.weights[p.numpy() + 1] >= (0.5 if s.kind == "noise" else 1)
        if s.kind in ("plain", "folded"):
            full &= model.parts[s.ids[p.numpy() + 1]]  # values only: the key list is much easier
        number = s.weights[p.numpy() + 1] > 1
        if number.any():
            a, b = scores.get("number", (0, 0))
            scores["number"] = (a + int(hit[at : at + len(p)][number].sum()), b + int(number.sum()))
        part = hit[at : at + len(p)][full]
        a, b = scores.get(s.kind, (0, 0))
        scores[s.kind] = (a + int(part.sum()), b + len(part))
        at += len(p)
    return (loss * weight).sum() / weight.sum(), scores


def rate(done, total, peak, step):
    if step < 50:
        return peak * (step + 1) / 50
    if done < 0.4 * total:
        return peak
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done / total - 0.4) / 0.6))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", type=float, default=4.4e6, help="prompt and completion tokens to train on")
    p.add_argument("--batch", type=int, default=3200, help="tokens a step, at least")
    p.add_argument("--peak", type=float, default=2e-3)
    p.add_argument("--limit", type=float, default=1.5e5, help="tokens after which a stage ends in any case")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)  # sharp attention underflows; denormal numbers would make products fifty times slower
    torch.manual_seed(a.seed)
    os.makedirs(a.run, exist_ok=True)
    path = os.path.join(a.run, "checkpoint.pt")

    words = load_words()
    vocabulary = Vocabulary(words)
    maker = Maker(words, Tokenizer(vocabulary), a.seed)
    model = Model(Config(), vocabulary)
    model.parts = np.isin(np.arange(len(vocabulary)), list(vocabulary.parts))
    initialise(model, vocabulary, fmt, a.seed)
    matrices = [t for t in model.parameters() if t.ndim == 2 and t.shape[0] not in (model.rows.shape[0], model.values.shape[0])]
    chosen = {id(t) for t in matrices}
    others = [t for t in model.parameters() if id(t) not in chosen]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.peak, betas=(0.9, 0.98))
    curriculum = Curriculum(a.limit)
    state = {"step": 0, "tokens": 0, "kinds": {k: 0 for k in SHARE}, "samples": {k: 0 for k in SHARE}, "form": 0, "wall": 0.0, "cpu": 0.0, "loss": None}
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"])
        state, curriculum.__dict__ = saved["state"], saved["curriculum"]
        maker.rng.setstate(saved["random"])
        print("resumed at step %d" % state["step"], flush=True)
    seen, mean, saved_at = {}, state["loss"], time.time()
    clock, cpu = time.time(), time.process_time()

    def save():
        nonlocal clock, cpu
        state["wall"] += time.time() - clock
        state["cpu"] += time.process_time() - cpu
        clock, cpu = time.time(), time.process_time()
        state["loss"], state["settings"] = mean, vars(a)
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": state, "config": tuple(model.config)}
        kept.update(curriculum=dict(curriculum.__dict__), random=maker.rng.getstate())
        torch.save(kept, path + ".new")
        os.replace(path + ".new", path)

    while state["tokens"] < a.tokens:
        batch, size = [], 0
        while size < a.batch:
            kind = min(SHARE, key=lambda k: state["kinds"][k] / SHARE[k])
            s = draw(kind, maker, curriculum)
            batch.append(s)
            size += len(s.ids)
            state["kinds"][kind] += len(s.ids)
            state["samples"][kind] += 1
            state["form"] += len(s.ids) if s.kind == "form" else 0
        for group in optimizer.param_groups:
            group["lr"] = rate(state["tokens"], a.tokens, a.peak, state["step"])
        loss, scores = forward(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state["step"] += 1
        state["tokens"] += size
        mean = loss.item() if mean is None else mean + 0.02 * (loss.item() - mean)
        for kind, (good, count) in scores.items():
            seen[kind] = seen.get(kind, 0.0) + 0.05 * (good / max(1, count) - seen.get(kind, 0.0))
        if "plain" in scores and scores["plain"][1]:
            curriculum.learned(scores["plain"][0] / scores["plain"][1], size)
        if state["step"] % 25 == 0:
            spent = state["wall"] + time.time() - clock
            left = spent / state["tokens"] * (a.tokens - state["tokens"])
            shown = " ".join("%s %.3f" % (k, seen.get(k, 0)) for k in [*SHARE, "number"])
            print(
                "step %d stage %dx%d loss %.3f %s | %.2fM tokens, %.0f/s, %.0f min left"
                % (state["step"], *STAGES[curriculum.stage], mean, shown, state["tokens"] / 1e6, state["tokens"] / spent, left / 60),
                flush=True,
            )
        if time.time() - saved_at > 120:
            save()
            saved_at = time.time()
    save()
    print(json.dumps({k: v for k, v in state.items() if k != "settings"}))


if __name__ == "__main__":
    main()
