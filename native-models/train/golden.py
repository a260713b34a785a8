"""Rendered samples with their token ids, for the runtime's tests: `python3 -m train.golden` writes builtin/golden.json."""
import json
import os
import random

from . import format as fmt
from .cuts import cut
from .data import folded_user
from .shipped import BUILTIN
from .format import Message
from .stream import make_stream
from .tokenizer import Tokenizer
from .words import Vocabulary, load_words

TEXTS = [
    "Plain text that no one trained on: naïve café, 日本語, 😀, tabs\tand\n\nnew  lines.",
    "river: goldharbor; boat: oakwing; f1a2b3, f00bea and fffff f s12345.",
    fmt.fold_marker("f1a2b3", 3910) + fmt.fold_marker("f0c0de", 12) + " river: oakstone;",
    fmt.render_call(fmt.fold_call("f1a2b3")) + "\n" + fmt.render_call(fmt.fold_call("fedcba")),
    fmt.render_call(fmt.Call("search_context", {"query": "Ada Abel", "max_results": 3, "context_size": 50})),
    '3 matches for "Ada Abel" in user messages.\n\nMatch 1 (s12f45): message 2 (user), character 812, shown\n...r the maternal grandmother of Ada Abel, Ivo Toth taught Ada...',
    "Of the 4 times I asked for a short story about rain, repeat the third one that you wrote, word for word. Put aB3f9xK2mQ directly in front of it, and write nothing else.",
    "aB3f9xK2mQShort story about rain\n\nThe hill fort is older than it looks, which surprised the visitors. Towards the end of summer",
    "Many words." + fmt.note(2) + fmt.note(57) + " 57 thousand characters.] 3" + fmt.note(104),
]


def openai(messages):
    """Messages as an OpenAI-style client would hold them."""
    out = []
    for m in messages:
        entry = {"role": m.role, "content": m.content}
        if m.note:
            entry["note"] = m.note
        if m.calls:
            entry["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in m.calls]
        out.append(entry)
    return out


def episode(words, rng, keys, n, k):
    """Prompts of a tool episode with `k` fragments: after the cut, and after the folds."""
    stream = make_stream(words, rng, keys, n)
    user = fmt.user_text(stream.order, stream.pairs)
    spans = cut(user, k)
    idents = ["f%05x" % rng.randrange(1 << 20) for _ in spans]
    start = [
        Message("system", fmt.SYSTEM),
        Message("user", user, note=fmt.note(fmt.thousands(user))),
        Message("assistant", "", (fmt.cut_call(k),)),
        Message("tool", fmt.cut_result(2, idents, round((spans[-1][1] - spans[0][0]) / k))),
    ]
    folds = [Message("assistant", "", tuple(map(fmt.fold_call, idents[:-1]))), *[Message("tool", fmt.fold_result(i)) for i in idents[:-1]]]
    shown = [start[0], Message("user", folded_user(user, spans, idents, k - 1), note=start[1].note), *start[2:], *folds]
    return stream, start, shown, {"spans": spans, "ids": idents}


def main():
    words = load_words()
    tokenizer, rng = Tokenizer(Vocabulary(words)), random.Random(7)
    cases = []

    def add(name, messages, tools, **more):
        text = fmt.render(messages, tools)
        cases.append({"name": name, "messages": openai(messages), "tools": list(tools), **more, "text": text, "ids": tokenizer.encode(text)})

    stream = make_stream(words, rng, 8, 2)
    add("plain, 8 keys, 2 updates", [Message("user", fmt.user_text(stream.order, stream.pairs))], [], order=stream.order, pairs=stream.pairs,
        answer=fmt.answer_text(stream.order, stream.last))  # fmt: skip
    stream, cut_, shown, more = episode(words, rng, 8, 12, 4)
    more.update(order=stream.order, pairs=stream.pairs)
    add("tools, after the cut (step 2)", cut_, fmt.TOOLS, **more)
    add("tools, after the folds (step 3)", shown, fmt.TOOLS)
    add("tools, first step", cut_[:2], fmt.TOOLS)
    data = {
        "about": "Made by native-models/train/golden.py. text = messages and tools through the chat template, with generation prompt; "
        "ids = the tokenizer's. spans: fragments of messages[1], half-open, in characters.",
        "tools": fmt.TOOLS,
        "texts": [{"text": t, "ids": tokenizer.encode(t)} for t in TEXTS],
        "prompts": cases,
    }
    path = os.path.join(BUILTIN, "golden.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    print("%s: %d bytes" % (path, os.path.getsize(path)))


if __name__ == "__main__":
    main()
