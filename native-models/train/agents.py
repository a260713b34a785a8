"""The two agents of the comparison: one answers at once, one first folds what is old with its context tools.

The runtime is simulated here as far as the agent sees it: ids, results, cuts and markers.
"""
import json
import re
from typing import NamedTuple

from . import format as fmt
from .cuts import cut
from .data import folded_user, new_ids
from .format import Call, Message

_SENTENCE = re.compile(r"The current value of (\w+) is (\w*)\.")
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)


class Outcome(NamedTuple):
    answers: dict
    clean: bool  # every call valid, every id exact, all fragments but the newest folded, one answer to every key, stopped by itself
    tokens: int  # prompt tokens of the answering step


def read_answer(text):
    return dict(_SENTENCE.findall(text))


def plain(generator, stream):
    text, tokens, ended = generator.answer(fmt.render([Message("user", fmt.user_text(stream.order, stream.pairs))]))
    answers = read_answer(text)
    return Outcome(answers, ended and list(answers) == stream.order, tokens)


def with_tools(generator, stream, rng, turns=5):
    user = fmt.user_text(stream.order, stream.pairs)
    note = fmt.note(fmt.thousands(user))
    messages, pieces, idents, folded, clean = [Message("system", fmt.SYSTEM), Message("user", user, note=note)], [], [], [], True
    tokens = 0
    for _ in range(turns):
        shown = messages[:]
        if folded:
            shown[1] = Message("user", _fold_view(user, pieces, idents, folded), note=note)
        text, tokens, ended = generator.answer(fmt.render(shown, fmt.TOOLS))
        calls = _CALL.findall(text)
        if not calls or not ended:
            answers = read_answer(text)
            clean = clean and ended and list(answers) == stream.order and bool(idents) and folded == idents[:-1]
            return Outcome(answers, clean, tokens)
        parsed, results = [], []
        for raw in calls:
            try:
                call = json.loads(raw)
                name, arguments = call["name"], call["arguments"]
                if name == "fragment_context" and not idents:
                    pieces = cut(user, arguments["num_fragments"], arguments["start_marker"], arguments["end_marker"])
                    idents = new_ids(rng, len(pieces))
                    results.append(fmt.cut_result(2, idents, round((pieces[-1][1] - pieces[0][0]) / len(pieces))))
                elif name == "fold_fragment" and arguments["fragment_id"] in idents and arguments["fragment_id"] not in folded:
                    folded.append(arguments["fragment_id"])
                    results.append(fmt.fold_result(arguments["fragment_id"]))
                else:
                    raise ValueError(raw)
                parsed.append(Call(name, arguments))
            except (ValueError, KeyError, TypeError):
                clean = False
        if not clean:
            return Outcome({}, False, tokens)
        messages.append(Message("assistant", "", tuple(parsed)))
        messages += [Message("tool", r) for r in results]
    return Outcome({}, False, tokens)


def _fold_view(user, pieces, idents, folded):
    """The user message with the fragments `folded` replaced by markers."""
    if folded == idents[: len(folded)]:
        return folded_user(user, pieces, idents, len(folded))
    text = user[: pieces[0][0]]
    for ident, (a, b) in zip(idents, pieces):
        text += fmt.fold_marker(ident, b - a) if ident in folded else user[a:b]
    return text + user[pieces[-1][1] :]
