"""Checks of native-models/train/gspo.py, each by its name: `python3 gspo_checks.py <name> <folder>`. Called by gspo.test.ts."""
import json
import os
import random
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "native-models"))
import torch  # noqa: E402

from train import attention, gspo  # noqa: E402
from train.branches import Branches  # noqa: E402
from train.model import Config, Model  # noqa: E402
from train.rollouts import Runtime, Trajectory, trajectories  # noqa: E402
from train.words import Vocabulary, load_words  # noqa: E402


def small(seed=1):
    torch.manual_seed(seed)
    model = Model(Config(layers=2, width=32, heads=2, head=16, hidden=32), Vocabulary(load_words()))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2)
    return model


def trajectory(group, reward, texts, stretches, logprobs=()):
    parts = {"right": reward == 1, "cutOff": False, "failed": 0, "recovered": 0}
    return Trajectory(group, "cell", reward, 0.0, parts, {}, 0, texts, stretches, np.array(logprobs))


def said_by(model, some):
    """The same trajectory, with the log-probabilities that this model has now."""
    with torch.no_grad():
        return some._replace(logprobs=torch.cat(Branches(some.texts, some.stretches).log_probabilities(model)).numpy())


def equations(_):
    """Equations 1 to 3 against a computation by their letters."""
    rng = random.Random(7)
    for _ in range(200):
        rewards = [rng.choice((-1, 0, 1)) for _ in range(rng.randint(2, 9))]
        mean = sum(rewards) / len(rewards)
        deviation = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
        gains = gspo.advantages(rewards)
        assert (gains is None) == (deviation == 0), rewards
        if gains is None:
            continue
        assert np.allclose(gains, [(r - mean) / deviation for r in rewards])
        ratios, total, clipped = [], 0.0, 0
        for gain in gains:
            old = [rng.uniform(-3, -0.01) for _ in range(rng.randint(1, 40))]
            new = [p + rng.gauss(0, 1e-3) for p in old]
            likelier = 1.0
            for a, b in zip(new, old):
                likelier *= np.exp(a) / np.exp(b)
            naive = likelier ** (1 / len(old))
            ratios.append(gspo.ratio(torch.tensor(new, dtype=torch.float64), torch.tensor(old, dtype=torch.float64)))
            assert abs(ratios[-1].item() - naive) < 1e-12
            held = min(max(naive, 1 - 3e-4), 1 + 4e-4)
            total += min(naive * gain, held * gain) / len(gains)
            clipped += held * gain < naive * gain
        raised, counted = gspo.objective(torch.stack(ratios), gains)
        assert abs(raised.item() - total) < 1e-12 and counted == clipped, (raised, total, counted, clipped)


def clips(_):
    """What a clip holds back has no gradient, is counted, and only on the side where the step has already gone."""
    for value, gain, held in [(1 + 5e-4, 1, True), (1 - 5e-4, 1, False), (1 + 5e-4, -1, False), (1 - 5e-4, -1, True),
                              (1 + 3.9e-4, 1, False), (1 - 2.9e-4, -1, False), (1 - 3.1e-4, -1, True)]:  # fmt: skip
        one = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        raised, count = gspo.objective(one, [gain])
        raised.backward()
        assert (count == 1) == held and (one.grad.item() == 0) == held, (value, gain, count, one.grad)


def shared(_):
    """Texts that begin alike give what each gives alone, gradients too."""
    rng, model = random.Random(3), small()
    beginning = [rng.randrange(4000) for _ in range(20)]
    texts = [beginning[: rng.randint(1, 20)] + [rng.randrange(4000) for _ in range(rng.randint(1, 25))] for _ in range(12)]
    texts += [texts[0], texts[1][:-1], beginning, beginning]
    stretches = []
    for text in texts:
        a, b = sorted(rng.sample(range(1, len(text) + 1), 2)) if len(text) > 1 else (1, 1)
        stretches.append([[a, b]] if rng.random() < 0.6 or b == len(text) else [[a, b], [b, len(text)]])
    branches = Branches(texts, stretches)
    assert len(branches.ids) < sum(map(len, texts)) * 0.8
    together = torch.cat(branches.log_probabilities(model))
    together.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    alone = []
    for text, some in zip(texts, stretches):
        ids = torch.tensor(text)
        picks = torch.cat([torch.arange(a, b) for a, b in some]) - 1
        logits = model(ids, torch.arange(len(text)), [(0, len(text))], [picks])
        alone.append(torch.log_softmax(logits, -1)[torch.arange(len(picks)), ids[picks + 1]])
    alone = torch.cat(alone)
    alone.sum().backward()
    assert torch.allclose(together, alone, atol=1e-4), (together - alone).abs().max()
    for a, p in zip(gradients, model.parameters()):
        assert torch.allclose(a, p.grad, atol=1e-3 * max(1.0, p.grad.abs().max().item()))


def again(_):
    """Attention that keeps no weights for the gradient computes them again, to the last digit; as much as memory is there for it keeps."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 700, 16) * 0.3, torch.randn(3, 1500, 16), torch.randn(3, 1500, 16)
    pieces = [(0, 0, torch.arange(200, 600)), (400, 700, torch.arange(100, 400))]

    def gradients(kept):
        attention.KEPT = kept
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        found = attention.Attention.apply(*given, pieces)
        held = [p is not None for *_, p in found.grad_fn.parts]
        found.square().sum().backward()
        return set(held), [found.detach(), *(t.grad for t in given)]

    weights = 3 * (400 * 600 + 300 * 400)
    (all_kept, whole), (none, lean) = gradients(weights), gradients(weights - 1)
    assert (all_kept, none) == ({True}, {False}), (all_kept, none)
    assert all(torch.equal(a, b) for a, b in zip(whole, lean))


def learning(_):
    """A step makes what was above its group's mean likelier and what was below it less likely; a group that is all alike moves nothing."""
    model = small()
    text = lambda seed: [5, 6, 7, *random.Random(seed).sample(range(4000), 12)]  # noqa: E731
    good, bad = (trajectory("one", r, [text(r), text(r + 5)], [[[3, 15]], [[5, 9]]]) for r in (1, -1))
    alike = [trajectory("two", 0, [text(n)], [[[3, 15]]]) for n in (20, 21)]
    good, bad, *alike = (said_by(model, each) for each in (good, bad, *alike))
    a = type("Settings", (), {"minibatches": 2, "lm": 0.0, "reward": "appendix-f"})
    told = gspo.iterate(model, torch.optim.SGD(model.parameters(), lr=1e-2), [good, bad, *alike], a)
    assert (told["groups"], told["learned"], told["clipped"]) == (2, 1, 0) and told["farthest"] < 1e-6, told
    rose, fell = (said_by(model, each).logprobs.mean() - each.logprobs.mean() for each in (good, bad))
    assert rose > 1e-4 and fell < -1e-4, (rose, fell)
    # What one step moved beyond the clips a second one leaves alone.
    before = [p.detach().clone() for p in model.parameters()]
    told = gspo.iterate(model, torch.optim.SGD(model.parameters(), lr=1e-2), [good, bad], a)
    assert told["clipped"] == 1 and all(torch.equal(x, p) for x, p in zip(before, model.parameters())), told
    # Tries of one reward differ by their parts; one that was cut off is worth nothing, whatever it said.
    a.reward = "parts"
    more, less = (said_by(model, each._replace(points=points)) for each, points in zip(alike, (0.5, 0.25)))
    cut = said_by(model, alike[1]._replace(points=1.0, parts={**alike[1].parts, "cutOff": True}))
    assert gspo.iterate(model, torch.optim.SGD(model.parameters(), lr=1e-2), [more, less, cut], a)["learned"] == 1
    assert [gspo.REWARDS["parts"](each) for each in (more, less, cut)] == [0.5, 0.25, 0.0]
    assert said_by(model, more).logprobs.mean() > more.logprobs.mean()


def likely(_):
    """The LM term is the loss on what was right, and on nothing else."""
    model = small()
    text = [5, 6, 7, 100, 200, 300]
    right, wrong = (said_by(model, trajectory("one", r, [text + [r + 9]], [[[3, 7]]])) for r in (1, 0))
    (with_lm, about), (without, _) = (gspo.loss_of(model, [right, wrong], [1.0, -1.0], lm) for lm in (0.1, 0.0))
    assert abs(with_lm.item() - without.item() + 0.1 * right.logprobs.mean()) < 1e-5
    assert abs(about["lm"] + right.logprobs.mean()) < 1e-5


def snapshots(_):
    """A trajectory's ratio spans its snapshots: every token counts the same, however they are shared out."""
    record = {"points": 1, "reward": 1, "parts": {}, "calls": {}, "context": 9, "group": "g"}
    records = [
        {**record, "snapshot": 0, "tokens": [1, 2, 3, 4], "loss": [[2, 4]], "logprobs": [[-1.0, -2.0]]},
        {**record, "snapshot": 1, "tokens": [1, 9, 8, 7, 6], "loss": [[1, 2], [3, 5]], "logprobs": [[-0.5], [-0.25, -4.0]]},
        {**record, "snapshot": 0, "tokens": [1, 2], "loss": [[1, 2]], "logprobs": [[-3.0]]},
        {**record, "snapshot": 0, "tokens": [1, 2], "loss": [[1, 2]], "logprobs": [[-3.0]], "group": "h"},
    ]
    first, second, third = trajectories(records, ["a", "b"])
    assert first.logprobs.tolist() == [-1, -2, -0.5, -0.25, -4] and len(first.texts) == 2
    assert [t.cell for t in (first, second, third)] == ["a", "a", "b"]
    new = first.logprobs + [0.1, 0, 0, 0, 0]
    assert abs(gspo.ratio(torch.tensor(new), torch.tensor(first.logprobs)).item() - np.exp(0.1 / 5)) < 1e-12


def agreement(folder):
    """The runtime's log-probabilities of what it sampled are PyTorch's, cuts and folds among it; prints how far they are apart."""
    model, vocabulary = gspo.begun(gspo.GGUF_PATH)
    path = os.path.join(folder, "policy.gguf")
    gspo.write(path, model, vocabulary)
    again, _ = gspo.begun(path)
    for a, b in zip(model.parameters(), again.parameters()):
        assert torch.allclose(a, b, atol=1e-6)
    cells = {"folds": gspo.stream(18, 28, "start-last"), "short": gspo.stream(6, 4), "stumbles": gspo.stream(8, 4, stumble=True)}
    for cell in cells.values():
        cell["options"]["seed"] = 5
    runtime = Runtime()
    tries = runtime.roll(cells, model=path, seed=3, temperature=1, rollouts=3, maxTokens=200, maxCalls=8)
    runtime.close()
    assert len(tries) == 9 and max(len(t.texts) for t in tries) >= 3, [len(t.texts) for t in tries]
    away, ratios = [], []
    for each in tries:
        now = said_by(model, each).logprobs
        assert len(now) == len(each.logprobs)
        away.append(np.abs(now - each.logprobs))
        ratios.append(abs(float(gspo.ratio(torch.tensor(now), torch.tensor(each.logprobs))) - 1))
    away = np.concatenate(away)
    print(json.dumps({"tokens": len(away), "mean": float(away.mean()), "most": float(away.max()), "ratio": max(ratios)}))


def resumes(folder):
    """A run that is stopped goes on from its checkpoint, and refuses other settings."""
    gspo.MIXES, gspo.GROUP = {"short": {"short": gspo.stream(3, 2)}}, 2
    run = os.path.join(folder, "run")

    def called(*more):
        sys.argv = ["gspo", "--run", run, *more]
        gspo.main()
        with open(os.path.join(run, "curve.json"), encoding="utf-8") as f:
            return json.load(f)["curve"]

    first = called("--iterations", "1")
    both = called("--iterations", "2")
    assert [point["iteration"] for point in both] == [0, 1] and both[0] == first[0]
    assert os.path.getsize(os.path.join(run, "learned.gguf")) == os.path.getsize(gspo.GGUF_PATH)
    try:
        called("--lm", "0")
    except SystemExit as refused:
        assert "give those" in str(refused)
    else:
        raise AssertionError("went on with another LM term")


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2])
