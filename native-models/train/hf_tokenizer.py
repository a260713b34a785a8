"""The vocabulary of a GGUF as `tokenizer.json`, for Transformers.js.

llama.cpp merges pairs of a SentencePiece vocabulary best score first and leftmost among equals. The BPE of `tokenizer.json` ranks
every merge differently from every other and has no "leftmost among equals", which our vocabulary needs: "12", "21" and all other pairs
of digits have one score. But our vocabulary is closed under prefixes (but for values, which are two tokens of it), so that merging
amounts to reading the longest token from left to right. A regular expression does that before the model, which then takes every piece
that is a token as it is and writes the rest as bytes. `check` compares both on the tokens themselves and on random texts and refuses a
vocabulary for which that is not so.

One difference is left. llama.cpp cuts out USER_DEFINED texts longest first, `tokenizer.json` from left to right: where one begins inside
another (" into fragments of about "), they may disagree.
"""
import random
import re

from .tokenizer import Tokenizer
from .words import CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED, Token

SPECIAL = (UNKNOWN, CONTROL, USER_DEFINED)  # cut out before the model, as llama.cpp does


class Vocabulary:
    """The tokens of a GGUF's metadata, as `Tokenizer` wants them."""

    def __init__(self, metadata):
        if metadata["tokenizer.ggml.model"] != "llama" or metadata.get("tokenizer.ggml.add_space_prefix", True):
            raise SystemExit("this export knows SentencePiece vocabularies (model llama) without a space prefix")
        ggml = [metadata["tokenizer.ggml." + part] for part in ("tokens", "scores", "token_type")]
        self.tokens = [Token(*t) for t in zip(*ggml)]
        self.id = {t.text: i for i, t in enumerate(self.tokens)}
        self.long = {t.text: t.score for t in self.tokens if t.kind == NORMAL and len(t.text) > 1}


def pattern(vocabulary):
    """A regular expression (of Python, JavaScript and Oniguruma alike) whose leftmost match is the next token of more than one character.

    A token gives way if its last character and the next make a pair of a better score.
    """
    better = {}
    for pair, score in vocabulary.long.items():
        if len(pair) == 2:
            better.setdefault(pair[0], []).append((pair[1], score))
    trie = {}
    for text in sorted(vocabulary.long):
        at = trie
        for c in text:
            at = at.setdefault(c, {})
        at[""] = "".join(sorted(c for c, score in better.get(text[-1], ()) if score > vocabulary.long[text]))
    return _alternatives(trie)


def _alternatives(trie):
    parts = [_quoted(c) + _alternatives(below) for c, below in trie.items() if c]
    if "" in trie:
        parts.append("(?!%s)" % "|".join(map(_quoted, trie[""])) if trie[""] else "")
    return parts[0] if len(parts) == 1 else "(?:%s)" % "|".join(parts)


def _quoted(c):
    return "\\" + c if c in "\\^$.*+?()[]{}|/" else c


def encode(vocabulary, expression, text):
    """What tokenizer.json makes of a text without added tokens."""
    ids, at, text = [], 0, text.replace(" ", SPACE)
    for match in expression.finditer(text):
        ids += _singles(vocabulary, text[at : match.start()]) + [vocabulary.id[match.group()]]
        at = match.end()
    return ids + _singles(vocabulary, text[at:])


def _singles(vocabulary, text):
    """A token for every character, bytes where it has none."""
    ids = []
    for c in text:
        ids += [vocabulary.id[c]] if c in vocabulary.id else [vocabulary.id["<0x%02X>" % b] for b in c.encode("utf-8")]
    return ids


def check(vocabulary, expression, texts=20000, seed=1):
    """Raises if `expression` and the merges of llama.cpp disagree."""
    merges, chance = Tokenizer(vocabulary), random.Random(seed)
    long, special = list(vocabulary.long), [t.text for t in vocabulary.tokens if t.kind in SPECIAL]
    single = [t.text for t in vocabulary.tokens if t.kind == NORMAL and len(t.text) == 1] + [SPACE, ",", "é"]

    def piece():
        text = chance.choice(chance.choice((long, single)))
        return text[: chance.randint(1, len(text))] if chance.random() < 0.5 else text

    random_texts = ("".join(piece() for _ in range(chance.randint(2, 6))) for _ in range(texts))
    for text in (*long, *random_texts):
        text = text.replace(SPACE, " ")
        if not any(s in text for s in special) and merges.encode(text) != encode(vocabulary, expression, text):
            raise SystemExit("reading the longest token first is not what the scores say for %r; this vocabulary needs another tokenizer.json" % text)


def tokenizer_json(metadata):
    """The content of tokenizer.json."""
    vocabulary = Vocabulary(metadata)
    source = pattern(vocabulary)
    check(vocabulary, re.compile(source))
    added = [(i, t) for i, t in enumerate(vocabulary.tokens) if t.kind in SPECIAL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    space = {"String": SPACE}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t.text, **flags, "special": t.kind != USER_DEFINED} for i, t in added],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": source}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": space, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.tokens[metadata["tokenizer.ggml.unknown_token_id"]].text,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": True,
            "vocab": {t.text: i for i, t in enumerate(vocabulary.tokens)},
            "merges": [],
        },
    }


def tokenizer_config(metadata):
    """The content of tokenizer_config.json."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", True),
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata[metadata["general.architecture"] + ".context_length"],
        "padding_side": "left",
        "chat_template": metadata["tokenizer.chat_template"],
    }
