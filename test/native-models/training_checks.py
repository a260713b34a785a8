"""Checks of native-models/train's step and samples, each by its name: `python3 training_checks.py <name>`. Called by training.test.ts."""
import json
import os
import random
import re
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "native-models"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from train import format as fmt  # noqa: E402
from train import sampled  # noqa: E402
from train.data import Maker  # noqa: E402
from train.going_back import GoingBack  # noqa: E402
from train.managing import Managing  # noqa: E402
from train.shipped import GGUF_PATH, begun  # noqa: E402
from train.train import LOOKING, SAYING, learn  # noqa: E402
from train.trajectories import Record, Trajectories  # noqa: E402
from train.tokenizer import Tokenizer  # noqa: E402
from train.visits import NAMED, Visits  # noqa: E402
from train.workers import Workers, alone  # noqa: E402

LOOK = 0.5


def setting(seed):
    model, vocabulary = begun(GGUF_PATH)
    model.parts = np.isin(np.arange(len(vocabulary)), list(vocabulary.parts))
    return model, Maker(vocabulary.words, Tokenizer(vocabulary), seed, 0.3)


def some_samples(maker):
    """Short and long ones, whole answers and single questions, told places of both kinds."""
    visits = Visits(maker)
    made = [maker.noise(20), maker.ids(4), maker.chat(), maker.plain(6, 3), maker.plain(8, 2, 1), maker.folded(8, 4, False), maker.cut(6, 4)]
    return [*made, maker.unseen(8, 3, False), maker.unseen(16, 4, True), visits.draw(), visits.draw(), visits.marked(), maker.noise(400)]


def turned(x, positions, base):
    """`x`: [tokens, heads, head]."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def by_the_letter(model, samples):
    """The loss that a step lowers, a sequence at a time and everything of it, in float64."""
    c, table, total = model.config, model.table(), sum(float(s.weights.sum()) for s in samples)
    told, carried = sum(LOOKING * len(s.looks) + len(s.steps) for s in samples), sum(len(s.looks) for s in samples)
    norm = lambda of, x: x / (x.pow(2).mean(-1, keepdim=True) + c.eps).sqrt() * of.weight  # noqa: E731
    loss = torch.zeros((), dtype=torch.float64)
    for s in samples:
        ids, positions = torch.from_numpy(s.ids), torch.from_numpy(s.positions).double()
        looks = torch.from_numpy(s.looks)
        x = table[ids]
        for n, layer in enumerate(model.layers):
            y = norm(layer.norm1, x)
            q, k = (turned(of(y).view(-1, c.heads, c.head), positions, c.rope_base) for of in (layer.q, layer.k))
            v = layer.v(y).view(-1, c.heads, c.head)
            scores = torch.einsum("qhd,khd->hqk", q, k) / c.head**0.5
            scores = scores.masked_fill(torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1), -torch.inf)
            x = x + layer.o(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1))
            y = norm(layer.norm2, x)
            x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
            if n == len(model.layers) - 2 and len(s.steps):
                at, place = torch.from_numpy(s.steps).unbind(1)
                loss = loss - LOOK * scores.log_softmax(-1)[-1, at, place].sum() / told
            if n == len(model.layers) - 1 and len(looks):
                at, place = looks[:, 0] - 1, looks[:, 1]
                loss = loss - LOOK * scores.log_softmax(-1)[-LOOKING:, at, place].sum() / told
                brought = v[place, -LOOKING:].flatten(1) @ layer.o.weight[:, -LOOKING * c.head :].t()
                size = x.detach()[at].pow(2).mean(-1, keepdim=True).sqrt()
                said = (brought / size * model.norm.weight) @ table.t()
                loss = loss + LOOK * SAYING * F.cross_entropy(said, ids[looks[:, 0]], reduction="sum") / carried
        at = torch.from_numpy(np.flatnonzero(s.weights))
        logits = norm(model.norm, x[at - 1]) @ table.t()
        loss = loss + (F.cross_entropy(logits, ids[at], reduction="none") * torch.from_numpy(s.weights)[at]).sum() / total
    return loss


def step():
    """Loss and gradients of a training step against a computation by their letters, in float32, in bfloat16, and from a sample of the tokens."""
    model, maker = setting(11)
    samples = [sample for _ in range(4) for sample in some_samples(maker)]  # of a few the rounding of bfloat16 does not average out
    compute = {"here": alone, "beside": Workers(model, 2)}
    exact = begun(GGUF_PATH)[0].double()
    loss = by_the_letter(exact, samples)
    loss.backward()
    right = torch.cat([p.grad.flatten() for p in exact.parameters()])
    for name, precision, share, where in (
        ("single", torch.float32, 1, "here"), ("half", torch.bfloat16, 1, "here"),
        ("sampled", torch.float32, sampled.SHARE, "here"), ("beside", torch.float32, sampled.SHARE, "beside"),
    ):  # fmt: skip
        sampled.SHARE = share
        said, astray, unsaid, _ = learn(model, [samples[::2], samples[1::2]], compute[where], LOOK, precision)
        got = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        print(json.dumps({
            "products": name, "loss": abs(said + LOOK * (astray + SAYING * unsaid) - loss.item()) / loss.item(),
            "gradient": ((got - right).norm() / right.norm()).item(),
            "size": (got.norm() / right.norm()).item(),
        }))  # fmt: skip


def sample():
    """Which tokens a sample has: in the mean each counts once, the largest always, each as once, the told ones always."""
    random = torch.Generator().manual_seed(3)
    counts, taken = torch.zeros(2000, dtype=torch.double), 0
    size, told = 0.01 + torch.rand(2000, generator=random) ** 8, torch.tensor([7, 1999])
    for _ in range(4000):
        scale = torch.rand((), generator=random)  # what says where the counting begins
        places, scales = sampled._pick(size[:, None] * scale, told)
        assert (places.diff() > 0).all() and torch.isin(told, places).all()
        counts[places] += scales
        taken += len(places)
    large = size > size.sort().values[-20]
    rare = size < size.median()
    print(json.dumps({
        "taken": taken / 4000 / 2000, "large": [counts[large].min().item() / 4000, counts[large].max().item() / 4000],
        "rare": counts[rare].mean().item() / 4000, "whole": counts.mean().item() / 4000,
    }))  # fmt: skip


def visits():
    """Conversations are told true places: a value of an answer is looked for behind its key, where no later update of that key comes."""
    _, maker = setting(5)
    visits, tokens = Visits(maker), maker.vocabulary.tokens
    sentence = re.compile(re.escape(fmt.SENTENCE) + r" (.+) is (.+)\.")
    asked = told = newest = 0
    for _ in range(300):
        sample = visits.draw()
        text = maker.tokenizer.decode(sample.ids)
        ids, starts = maker.tokenizer.spelled(text)
        assert ids == sample.ids.tolist()
        looks, at = dict(sample.looks.tolist()), {start: n for n, start in enumerate(starts)}
        word = lambda n: starts[n] + (text[starts[n]] == " ")  # noqa: E731
        for answer in re.finditer(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", text, re.S):
            for found in sentence.finditer(text, answer.start(), answer.end()):
                key, value, own = found[1], found[2], at.get(found.start(2), at.get(found.start(2) - 1))
                asked += 1
                if own not in looks:
                    continue
                place = word(looks[own])
                assert text.startswith(value, place) and any(text[:place].endswith(key + named) for named in NAMED), (key, value, text)
                told += 1
                later = [re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(key + named), text[place : answer.start()]) for named in NAMED if named != ":"]
                newest += not any(later)  # but where the key is the end of another one of two words
        assert (sample.weights[sample.looks[:, 0]] > 0).all() and (sample.looks[:, 1] < sample.looks[:, 0]).all()
        for one, other in sample.looks:
            one, other = (tokens[sample.ids[n]].text.replace("\u2581", " ").strip() for n in (one, other))
            assert one[:1] == other[:1], (one, other)
    print(json.dumps({"asked": asked, "told": told / asked, "newest": newest / told}))


def marked():
    """A cut quotes two markers that the prompt has, one before the other; after a fold the first one is hidden, and an answer follows. What was refused does not
    quote them, and is not learned: it is quoted in the refusal, and a cut follows, or after two of them an answer."""
    _, maker = setting(6)
    visits, refusals = Visits(maker), []
    for _ in range(300):
        sample = visits.marked()
        text = maker.tokenizer.decode(sample.ids)
        prompt, *calls = text.split(fmt.START + "assistant\n")
        refused = [call for call in calls if "tool\nError: " in call]
        if refused:
            given = [json.loads(call) for call in re.findall(r"<tool_call>\n(.*)\n</tool_call>", "".join(refused)) if call.endswith("}}")]
            for each in given:
                told = re.search(r'Error: (\w+) (".*") is not in the user messages', refused[0])
                said = each["arguments"][told[1]]
                assert told[2] == fmt.quoted(said) and said not in prompt.split("user\n", 1)[1], text
            endless = not given
            assert len(refused) == (1 if endless else len(given))
            before = maker.tokenizer.encode(text[: text.rindex(refused[-1]) + len(refused[-1])])
            assert not sample.weights[: len(before)].any(), text
            refusals.append("endless" if endless else len(refused))
            if endless or len(refused) == 2:
                assert calls[-1].startswith(fmt.SENTENCE) and len(calls) == len(refused) + 1, text
                continue
        call = calls[len(refused)]
        said = json.loads(re.search(r"<tool_call>\n(.*)\n</tool_call>", call)[1])["arguments"]
        first, last = prompt.find(said["start_marker"]), prompt.rfind(said["end_marker"])
        folded = fmt.MARKER_END in prompt
        assert (-1 if folded else 0) <= first < last, (prompt, said)
        assert text.endswith("." + fmt.END) == folded, text
    assert set(refusals) == {1, 2, "endless"}, refusals


def managed():
    """What is searched was asked for, with a letter before each item, all that was loaded is removed, what is called is defined before, and calls and values of the answer
    have their letters; names are told where they stand, and what is decided (whether another call follows) stands before."""
    _, maker = setting(8)
    tokens = maker.vocabulary.tokens
    plain = lambda n: tokens[n].text.replace("\u2581", " ").strip()  # noqa: E731
    broken = 0
    for _ in range(90):
        sample = Managing(maker).draw()
        text = maker.tokenizer.decode(sample.ids)
        assert maker.tokenizer.spelled(text)[0] == sample.ids.tolist()
        loaded, asides, bare = 0, 0, '"description"' not in text
        spelled = not text.startswith(fmt.START + "system")
        if spelled:
            companies = re.findall(r"\) (\w+ \w+)", text)
            assert companies and re.findall(r'"(\w+)"', text) == ["_".join(one.split()).lower() for one in companies], text
        lettered = lambda asked: ", ".join("(%s) %s" % pair for pair in zip("abcdefghijklmnop", asked.split(", ")))  # noqa: E731
        for said in re.finditer(r'<tool_call>\n(.*)\n</tool_call>|(\d+) tools? added|(\{"(?:remove|keywords)": \["[^\]]*\]\})', text):
            before = text[: said.start()]
            if said[1] and said[1].endswith("}") and not said[1].endswith("}}"):  # a search that never ended: it is refused, and written again or left
                refused = text[said.end() :].split(fmt.START + "assistant")[0]
                assert "Error: the arguments of search_tools are not a JSON object" in refused and ("removed. 0 of" in refused) <= (loaded > 0), refused
                loaded, broken = 0, broken + 1
                continue
            if said[2]:
                loaded = int(said[2])
                continue
            if said[3]:
                ((asked, some),) = json.loads(said[3]).items()
                request = before[before.rindex("Please tell me ") + len("Please tell me ") :].split("\n")[0]
                assert some == ([lettered(request)] if asked == "keywords" else ["all"]), (some, request)
                asides += 1
                continue
            name, arguments = json.loads(said[1]).values()
            if name == "search_tools":
                question = before[before.rindex("Please tell me ") + len("Please tell me ") :].split("\n")[0].removesuffix(fmt.END)
                assert arguments["keywords"] == [lettered(question)], (question, arguments)
            elif name == "remove_tools":
                assert arguments["tool_names"] == ["all"] and loaded > 0
            else:
                definition = before.rfind('{"name": "%s", "description"' % name)
                assert bare or definition >= 0 or "(%s removed)" % name in before or "(removed)" in before, (name, text)
                listed = before.rindex('"keywords": ["')
                letter = re.search(r"\n(\([a-p]\))\n$", before)[1]
                item = before[before.index(letter + " the ", listed) + len("(a) the ") :].split(", (")[0].split('."]')[0]
                metric, company = item.split(" in 20")[0].split(" of ")
                assert name == "_".join([*company.split(), *metric.split()]).lower(), (item, name)
                if definition >= 0:
                    assert ('"year"' in before[definition:].split("\n")[0]) == ("year" in arguments), (name, text)
        assert asides == ("remove_tools(" not in text and not spelled)
        assert len(sample.looks) and (sample.looks[:, 1] < sample.looks[:, 0]).all()
        for one, other in sample.looks:
            said, stands = plain(sample.ids[one])[:1], plain(sample.ids[other])[:1]
            assert said == stands.lower() or said == stands or not stands, (said, stands)  # behind a company, its name in small letters
        assert (sample.weights[sample.looks[:, 0]] > 0).all() and (sample.weights[sample.hints[:, 0]] > 0).all()
        assert (sample.hints[:, 1] < sample.hints[:, 0]).all() and (sample.steps[:, 1] <= sample.steps[:, 0]).all()
        for own, source in sample.hints:
            then, by = plain(sample.ids[own]), plain(sample.ids[source])
            assert (by == ".") if then in (".", "a") else by == ",", (then, by)  # the end of the list, or more of it
    assert broken > 5


def often():
    """Streams of few keys: the newest value of each that is asked for is learned, whether or not older ones are folded away, and none that is not shown."""
    _, maker = setting(9)
    folded = fewer = 0
    for _ in range(40):
        sample = maker.often(4, 9 + maker.rng.randrange(40))
        prompt, said = maker.tokenizer.decode(sample.ids).rsplit(fmt.START + "assistant\n", 1)
        shown = re.sub(r"\[folded.*?\]", "", prompt).split(fmt.RULES, 1)[-1]
        answers = re.findall(fmt.SENTENCE + r" (\w+) is (\w+)\.", said)
        assert len(answers) in (2, 4) and all(re.findall(r"\b%s: (\w+);" % key, shown)[-1] == value for key, value in answers), said
        assert (sample.weights[-len(answers) :] > 0).all() and sample.kind == "often"
        folded, fewer = folded + ("[folded" in prompt), fewer + (len(answers) == 2)
    assert 5 < folded < 35 and 3 < fewer < 30, (folded, fewer)


def back():
    """What is decided, read from the text alone: while a key is missing the fragment before what is open is restored, and what is open folded that has none of
    them; else, or where nothing stands before, an answer begins. Who decides is told a missing key, where one is missing."""
    _, maker = setting(9)
    tokens, steps = maker.vocabulary.tokens, {0: 0, 1: 0, 2: 0}
    for _ in range(300):
        sample = GoingBack(maker).draw()
        text = maker.tokenizer.decode(sample.ids)
        assert maker.tokenizer.spelled(text)[0] == sample.ids.tolist()
        idents = re.findall("f[0-9a-f]{5}", re.search("first to last: (.*)\\.<", text)[1])
        prompt, said = text.rsplit(fmt.START + "assistant\n", 1)
        stream, question = re.sub(r"\[folded.*?\]", "|", prompt).split(fmt.RULES, 1)[1].split(fmt.QUESTION)
        asked = question.split("?")[0].strip().split(", ")
        shown = [ident for ident in idents if "[folded %s:" % ident not in prompt]
        missing = [key for key in asked if not re.search(r"\b%s: " % key, stream)]
        calls = [tuple(json.loads(one).values()) for one in re.findall("<tool_call>\n(.*)\n</tool_call>", said)]
        first = idents.index(shown[0])
        if not missing or first == 0:
            assert not calls and said == fmt.SENTENCE, text
        else:
            folded = shown if len(missing) == len(asked) else []
            wanted = [("restore_fragment", idents[first - 1]), *(("fold_fragment", one) for one in folded)]
            assert [(name, of["fragment_id"]) for name, of in calls] == wanted, text
        steps[min(2, len(calls))] += 1
        assert (sample.looks[:, 1] < sample.looks[:, 0]).all() and (sample.ids[sample.looks[:, 0]] == sample.ids[sample.looks[:, 1]]).all()
        assert (sample.weights[sample.hints[:, 0]] >= 4).all() and (sample.steps[:, 1] <= sample.steps[:, 0]).all()
        decided = int(np.flatnonzero(sample.weights)[0])
        for own, source in sample.hints:
            name = tokens[sample.ids[source]].text.replace("\u2581", "")
            assert name in missing if own == decided and calls else name not in missing, (name, missing)
        for own, source in sample.steps:
            name, at = (tokens[sample.ids[n]].text.replace("\u2581", "") for n in (own, source))
            assert at == (name if name in missing else name + ":"), (name, at)
    assert min(steps.values()) > 10, steps


def renamed():
    """Other names make the tokens that the tokenizer makes of the new text, and the same is learned of it."""
    _, maker = setting(7)
    v, t = maker.vocabulary, maker.tokenizer
    given, family = v.words.given, ["Toth", "Abel", "Petrov"]
    call = '<tool_call>\n{"name": "search_context", "arguments": {"query": "%s", "max_results": 3, "context_size": 50}}\n</tool_call>' + fmt.END
    kind = Trajectories.__new__(Trajectories)
    kind.tokenizer = t
    kind.named = [v.id[text] for text in (fmt.SEARCH_OPEN, "The" + fmt.ELDEST, fmt.BOX)]
    kind.closes = [v.id[text] for text in (*fmt.SEARCH_CLOSE, fmt.BOX, fmt.BOXED)]
    for n in range(50):
        rng = random.Random(n)
        one, two = ("%s %s" % (rng.choice(given), rng.choice(family)) for _ in range(2))
        parts = [("In dry years %s, %s's father, is out. " % (two, one), 0), (call % one, 1), ("\n1 match: ...%s's father...\n" % one, 0)]
        parts += [("The eldest relative of '%s' is \\boxed{%s}.%s" % (one, two, fmt.END), 1)]
        ids, learned = [], []
        for text, own in parts:
            made = t.encode(text)
            learned += [[len(ids), len(ids) + len(made)]] * own
            ids += made
        other = kind.renamed(Record(np.array(ids, np.uint16), learned), rng, maker.name)
        text = t.decode(other.ids)
        assert t.encode(text) == other.ids.tolist() and not any(re.search(r"\b%s\b" % name, text) for name in (*one.split(), *two.split())), text
        assert [t.decode(other.ids[a:b])[:10] for a, b in other.learned] == ["<tool_call", "The eldest"], other.learned
        assert text.replace("\n", " ").count(re.search(r"boxed\{(.*)\}", text)[1]) == 2, text


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
