"""Learning by reward: GSPO (Sculptor, equations 1 to 3, table 4, appendix F) on the built-in model; `python3 -m train.gspo --run <folder>`.

The runtime plays `GROUP` tries at each of some new prompts with the weights as they are; a try's reward is 1, 0 or -1, and its advantage how much
that is above the mean of its group, in standard deviations. Its ratio is how much likelier all that it said has become, as the geometric mean over
its tokens: over the completions of all its snapshots together, each of which counts once. What moved a ratio beyond the clips teaches nothing more.
To that is added, times 0.1, the loss of a language model on the tries that were right (the paper has "LM regularization 0.1" and says no more).

Not the paper's (table 4: 200 iterations, learning rate 1e-6, clips 3e-4 and 4e-4, no KL penalty, AdamW, 20 calls, 128K tokens): the learning rate,
fifty times as high for a model 4,500 times as small, over the first five iterations less; as many iterations as the time allows; at most 8 calls and 96 tokens a step while training.
Group size, prompts an iteration and minibatches, which the paper does not name, are ours. Resumes from its checkpoint in the run's folder.
"""
import argparse
import json
import math
import os
import time
from collections import Counter

import numpy as np
import torch

from . import gguf
from .branches import Branches
from .export import metadata, tensors
from .rollouts import Runtime
from .shipped import GGUF_PATH, begun

GROUP = 8
STEP, CALLS = 96, 8  # most tokens of a step and calls of a turn
LOWER, UPPER = 3e-4, 4e-4
LM = 0.1
WARM = 5  # iterations until the learning rate is whole
FIRST_SEED = 3_200_000_000  # of prompts; those of evaluations are small numbers, those of the supervised recipe end in 3,000,000,006


def stream(keys, updates, order="shuffled", stumble=False):
    return {"task": "pi-llm", "stumble": stumble, "options": {"keys": keys, "updates": [updates], "order": order, "samples": 1}}


def session(way):
    """Two requests to MemTool, of one figure and of nine, in either order; the seed makes the companies, too."""
    return {"task": "memtool", "options": {"way": way, "turns": 2, "tools": 200, "relation": "mixed", "samples": 1}}


# What a try is worth: appendix F's 1, 0 or -1; or the share of what was asked for that is right, whatever calls failed, and nothing if it was cut off.
REWARDS = {"appendix-f": lambda t: t.reward, "parts": lambda t: 0.0 if t.parts["cutOff"] else t.points}


# What an iteration asks: where the shipped weights err. In `short` the third is long enough to be cut in two, and what is asked for stands in the part
# that is folded first; the last begins with a call that failed. In `far` all are like the third. `memtool` is what a session there takes, `autonomous` one
# in which the model does all of it.
MIXES = {
    "short": {
        "start": stream(6, 12, "start-last"), "middle": stream(9, 12, "middle-last"), "restore": stream(18, 28, "start-last"),
        "reading": stream(12, 8), "stumble": stream(8, 8, stumble=True),
    },
    "far": {"start": stream(24, 22, "start-last"), "more": stream(30, 17, "start-last"), "middle": stream(24, 22, "middle-last")},
    "memtool": {way: session(way) for way in ("autonomous", "workflow", "hybrid")},
    "autonomous": {"autonomous": session("autonomous")},
}  # fmt: skip


def advantages(rewards):
    """Equation 3, with the population's deviation; none where all rewards of the group are alike."""
    rewards = np.asarray(rewards, np.float64)
    deviation = rewards.std()
    return None if deviation == 0 else (rewards - rewards.mean()) / deviation


def ratio(new, old):
    """Equation 2: `new` and `old` log-probabilities of all tokens that a trajectory said, over all of its snapshots."""
    return torch.exp((new - old).mean())


def objective(ratios, gains, lower=LOWER, upper=UPPER):
    """Equation 1 of some trajectories: what is to be raised, and of how many the clip holds the gradient back."""
    gains = torch.as_tensor(gains, dtype=ratios.dtype)
    free, held = ratios * gains, torch.clamp(ratios, 1 - lower, 1 + upper) * gains
    return torch.minimum(free, held).mean(), int((held < free).sum())


def loss_of(model, some, gains, lm=LM):
    """What a step lowers, and what is to be known of it. `some`: trajectories; `gains`: their advantages."""
    owners = [n for n, each in enumerate(some) for _ in each.texts]
    branches = Branches([text for each in some for text in each.texts], [said for each in some for said in each.stretches])
    by_text = branches.log_probabilities(model)
    said = [torch.cat([by_text[at] for at, owner in enumerate(owners) if owner == n]) for n in range(len(some))]
    ratios = torch.stack([ratio(new, torch.as_tensor(each.logprobs, dtype=new.dtype)) for new, each in zip(said, some)])
    raised, clipped = objective(ratios, gains)
    right = [-new.mean() for new, each in zip(said, some) if each.reward == 1]
    likely = torch.stack(right).mean() if right else torch.zeros(())
    away = [np.abs(new.detach().numpy() - each.logprobs) for new, each in zip(said, some)]
    known = {
        "clipped": clipped, "ratios": ratios.detach().tolist(), "lm": likely.item(), "tokens": len(branches.ids),
        "apart": float(np.mean(np.concatenate(away))), "farthest": float(max(each.max() for each in away)),
    }  # fmt: skip
    return -raised + lm * likely, known


def write(path, model, vocabulary, half=False):
    gguf.write(path, metadata(model.config, vocabulary), tensors(model, half))


def entropy(counts):
    """Of which tool is called, in bits."""
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values()) if total else 0.0


def summary(tries):
    """A point of each curve: means over these tries."""
    calls = sum((Counter(each.calls) for each in tries), Counter())
    mean = lambda of: round(float(np.mean([of(each) for each in tries])), 4)  # noqa: E731
    return {
        "reward": mean(lambda t: t.reward), "right": mean(lambda t: t.parts["right"]), "points": mean(lambda t: t.points),
        "calls": mean(lambda t: sum(t.calls.values())), "tools": {name: round(n / len(tries), 4) for name, n in sorted(calls.items())},
        "entropy": round(entropy(calls), 4), "context": mean(lambda t: t.context), "cutOff": mean(lambda t: t.parts["cutOff"]),
        "failed": mean(lambda t: t.parts["failed"] > 0), "recovered": mean(lambda t: t.parts["recovered"] > 0),
    }  # fmt: skip


def iterate(model, optimizer, tries, a):
    """One iteration's steps on its tries: groups are shared out among the minibatches. What is to be known of them."""
    groups = {}
    for each in tries:
        groups.setdefault(each.group, []).append(each)
    learned = [(some, gain) for some in groups.values() if (gain := advantages([REWARDS[a.reward](each) for each in some])) is not None]
    known = []
    for part in range(a.minibatches):
        share = learned[part :: a.minibatches]
        if not share:
            continue
        loss, about = loss_of(model, [t for some, _ in share for t in some], np.concatenate([gain for _, gain in share]), a.lm)
        optimizer.zero_grad()
        loss.backward()
        about["gradient"] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        known.append(about)
    first = known[0] if known else {}
    ratios = [r for about in known for r in about["ratios"]]
    return {
        "groups": len(groups), "learned": len(learned), "tokens": sum(about["tokens"] for about in known),
        "clipped": round(sum(about["clipped"] for about in known) / max(1, len(ratios)), 4),
        "ratioAway": round(float(np.mean(np.abs(np.array(ratios) - 1))), 6) if ratios else None,
        "lm": round(float(np.mean([about["lm"] for about in known])), 4) if known else None,
        "gradient": [round(about["gradient"], 4) for about in known],
        # Before the first step both have the same weights: how far the trainer's log-probabilities are from the runtime's.
        "apart": first.get("apart"), "farthest": first.get("farthest"),
    }  # fmt: skip


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--run", required=True, help="folder of the run: checkpoint, curve, weights")
    p.add_argument("--gguf", default=GGUF_PATH, help="weights to begin with")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--iterations", type=int, default=200)
    p.add_argument("--minutes", type=float, default=math.inf, help="of this call")
    p.add_argument("--rate", type=float, default=5e-5)
    p.add_argument("--minibatches", type=int, default=2)
    p.add_argument("--lm", type=float, default=LM)
    p.add_argument("--reward", choices=REWARDS, default="appendix-f")
    p.add_argument("--mix", choices=MIXES, default="short")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    os.makedirs(a.run, exist_ok=True)
    checkpoint, policy = os.path.join(a.run, "gspo.pt"), os.path.join(a.run, "policy.gguf")
    model, vocabulary = begun(a.gguf)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.rate, betas=(0.9, 0.98), weight_decay=0.0)
    curve = []
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, map_location="cpu")
        if saved["settings"] != [a.seed, a.lm, a.rate, a.mix, a.reward]:
            raise SystemExit("%s has the seed, LM term, rate, mix and reward %s; give those, or name another folder" % (a.run, saved["settings"]))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        curve = saved["curve"]
    runtime, begin = Runtime(), time.time()
    while len(curve) < a.iterations and time.time() - begin < 60 * a.minutes:
        at, clock = len(curve), time.time()
        write(policy, model, vocabulary)
        seed = FIRST_SEED + 1_000_000 * a.seed + at
        cells = {name: {**cell, "options": {**cell["options"], "seed": seed}} for name, cell in MIXES[a.mix].items()}
        tries = runtime.roll(cells, model=os.path.abspath(policy), seed=seed, temperature=1, rollouts=GROUP, maxTokens=STEP, maxCalls=CALLS)
        rolled = time.time()
        for group in optimizer.param_groups:
            group["lr"] = a.rate * min(1, (at + 1) / WARM)
        told = iterate(model, optimizer, tries, a)
        seconds = {"rollouts": round(rolled - clock, 2), "training": round(time.time() - rolled, 2)}
        by_cell = {name: summary([each for each in tries if each.cell == name]) for name in MIXES[a.mix]}
        curve.append({"iteration": at, **summary(tries), **told, "seconds": seconds, "cells": by_cell})
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "curve": curve, "settings": [a.seed, a.lm, a.rate, a.mix, a.reward]}
        torch.save(kept, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
        print(json.dumps({k: v for k, v in curve[-1].items() if k != "cells"}), flush=True)
    runtime.close()
    write(os.path.join(a.run, "learned.gguf"), model, vocabulary, half=True)
    with open(os.path.join(a.run, "curve.json"), "w", encoding="utf-8") as f:
        json.dump({"settings": vars(a) | {"minutes": None}, "curve": curve}, f)


if __name__ == "__main__":
    main()
