"""The exact texts the built-in model sees: chat template, tools block, the interference task, tool results and markers.

The TypeScript runtime renders the same texts; `golden.json` holds samples that both sides are tested against.
"""
import json
from typing import NamedTuple

from . import chat

START, END = "<|im_start|>", "<|im_end|>"

TOOLS = {
    "fragment_context": ["start_marker", "end_marker", "num_fragments", "role"],
    "fold_fragment": ["fragment_id"],
    "restore_fragment": ["fragment_id"],
    "summarize_fragment": ["fragment_id", "focus"],
    "search_context": ["query", "role", "max_results", "context_size"],
    "get_search_detail": ["search_id", "extended_context"],
}

SYSTEM = (
    "You keep track of values that are updated again and again. Only the last value of a key counts, and older values get "
    "in the way. First call fragment_context to cut the stream of updates into fragments. Then call fold_fragment for the "
    "older fragments and leave the newest open. Then answer from what is still shown."
)

GENERAL = (
    "You are a helpful assistant who looks after your own context with tools. You can fold what does not matter, so that you see less of it, "
    "put summaries in the place of long passages, restore what you need again, and search the whole conversation for exact words, folded "
    "parts included. Keep what you see short and to the point, then answer."
)  # the runtime's prompt for any task

START_MARKER = "The stream of updates starts here."
END_MARKER = "The stream of updates ends here."
MARKS = START_MARKER, END_MARKER
INTRO = "Here is a stream of updates for "
RULES = (
    ". Every update gives one key a new value. When the stream is over you will be asked for the last value of every key.\n\n"
)
QUESTION = " What is the current value of each of these keys:"
FORM = "? Write one sentence for every key: The current value of <key> is <value>."
SENTENCE = "The current value of"


class Call(NamedTuple):
    name: str
    arguments: dict


class Message(NamedTuple):
    role: str
    content: str = ""
    calls: tuple = ()
    note: str = ""  # shown after the content


def tools_block(names=tuple(TOOLS)):
    return "\n\n# Tools" + "".join("\n%s(%s)" % (n, ", ".join(TOOLS[n])) for n in names)


def render_call(call):
    return '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (call.name, json.dumps(call.arguments, ensure_ascii=False))


def render_message(message):
    body = message.content + message.note
    if message.calls:
        body += ("\n" if body else "") + "\n".join(render_call(c) for c in message.calls)
    return START + message.role + "\n" + body + END + "\n"


def render(messages, tools=(), generate=True):
    """The whole conversation as one text. `tools`: names; a system turn is shown when there is one or when there are tools."""
    messages = list(messages)
    system = ""
    if messages and messages[0].role == "system":
        system = messages.pop(0).content
    text = ""
    if system or tools:
        text = START + "system\n" + system + (tools_block(tools) if tools else "") + END + "\n"
    return text + "".join(map(render_message, messages)) + (START + "assistant\n" if generate else "")


# the interference task


def user_text(order, pairs, marks=MARKS):
    """The one user message. `order`: the keys as listed and asked; `pairs`: (key, value) in stream order; `marks`: what they stand between."""
    keys = ", ".join(order)
    stream = " ".join("%s: %s;" % p for p in pairs)
    return (
        INTRO + str(len(order)) + " keys: " + keys + RULES + marks[0] + "\n" + stream + "\n\n" + marks[1] + QUESTION + " " + keys + FORM
    )


def answer_text(order, last):
    return "\n".join("%s %s is %s." % (SENTENCE, k, last[k]) for k in order)


# the note on long messages, as the runtime writes it when there are context tools

NOTED_FROM = 2000  # characters
MOST_FRAGMENTS = 20  # with the call that cuts, as many calls as a turn may have
NOTE_OPEN, NOTE_CLOSE = "\n\n[This message has about ", " thousand characters.]"
NOTES = {n: str(n) + NOTE_CLOSE for n in range(2, 100)}  # one token each


def thousands(content):
    """What the note of a message says, None when there is none: rounded half up."""
    return (len(content) + 500) // 1000 if len(content) >= NOTED_FROM else None


def note(noted):
    return NOTE_OPEN + str(noted) + NOTE_CLOSE if noted else ""


def fragments_for(noted):
    """How many fragments the teacher cuts a message into of which the note says `noted` thousand characters: one while it is short
    (up to eight updates of each of 46 keys), else one for every 5,000, so that the newest holds about five updates of each key."""
    return 1 if not noted or noted <= 8 else min(MOST_FRAGMENTS, (2 * noted + 5) // 10)


# tool calls, results and markers


def quoted(text, longest=80):
    """A text as the runtime quotes it in a refusal (src/runtime/context/refusal.ts): the middle of a long one is left out."""
    half = longest // 2
    return json.dumps(text if len(text) <= longest else text[:half] + " ... " + text[-half:], ensure_ascii=False)


def malformed(tool, said):
    """What the runtime answers to a call whose arguments cannot be read (src/runtime/agents/toolbox.ts)."""
    return "Error: the arguments of %s are not a JSON object: %s. Write the call again." % (tool, quoted(said))


def cut_call(k, marks=MARKS):
    return Call("fragment_context", {"start_marker": marks[0], "end_marker": marks[1], "num_fragments": k})


def fold_call(ident):
    return Call("fold_fragment", {"fragment_id": ident})


def restore_call(ident):
    return Call("restore_fragment", {"fragment_id": ident})


NEXT, LAST = ", then ", " and last "  # before the ids of a list


def cut_result(message, ids, chars):
    if len(ids) == 1:
        return "Cut message %d into 1 fragment of about %d characters: %s." % (message, chars, ids[0])
    listed = NEXT.join(ids[:-1]) + LAST + ids[-1]
    return "Cut message %d into %d fragments of about %d characters, first to last: %s." % (message, len(ids), chars, listed)


def fold_result(ident):
    return "Folded %s." % ident


def restore_result(ident):
    return "Restored %s." % ident


MARKER_END = " characters, restore_fragment shows them]"


def fold_marker(ident, chars):
    return "[folded %s: %d%s" % (ident, chars, MARKER_END)


def summary_call(ident, focus):
    return Call("summarize_fragment", {"fragment_id": ident, "focus": focus})


def summary_result(ident):
    return "Summarized %s." % ident


def summary_marker(ident, chars, summary):
    return "[summary of %s, %d characters, restore_fragment shows them: %s]" % (ident, chars, summary)


def summary_request(text, focus):
    """What the runtime asks when a fragment is to be summarised (src/runtime/context/summary.ts)."""
    return (
        "Summarize the text below in a few sentences. Keep what matters for: %s. Names, numbers and decisions stay exactly as they are; "
        "leave the rest out and add nothing. Answer with the summary alone.\n\nThe text:\n%s" % (focus, text)
    )


# the tasks that are read with searches: their prompts and questions, and how calls and results read

NEEDLES_SYSTEM = (
    "You trace how people are related. The facts are single sentences scattered through a long text. Call search_context with a "
    "name to find the sentences about that person, and get_search_detail to read more around one. Follow the chain from person "
    "to person, one search a name. Before you name the eldest, search for that name too and make sure that the text gives no "
    "elder. Then answer."
)
SIMILAR_SYSTEM = (
    "You find one of several similar texts again. Call search_context for the title that they share, among the messages of the "
    "assistant. The matches come in the order in which the texts were written. Call get_search_detail for the one that is "
    "asked for. Then repeat it to the letter."
)
REPEAT = ", repeat the"
ELDEST, BOX, BOXED = " eldest relative of '", "' is \\boxed{", "}."
TEXTS = [
    "Read the text below to its end; a question about some of the people in it follows. The text begins here.\n\n",
    "\n\nThe text ends here. Going up from relative to relative, who is the" + ELDEST,
    "' that the text leads to?\n",
    "An example: if a text says that Rosa Lund is Pietro Amsel's grandmother, that Kurt Brandt is the dad of Rosa Lund, and nothing more about "
    "their family, then the eldest relative of Pietro Amsel is \\boxed{Kurt Brandt}.\nWhat counts is who comes from an earlier generation: whether "
    "a name suits a mother or a father does not matter, nor do family names that differ. End your answer like this: the" + ELDEST,
    "' is \\boxed{name}.", "The" + ELDEST, BOX, BOXED,
    "An example of a conversation, a last question and the right answer to it:\n\nUser: Write", "\n\nUser: Of the",
    "\n\nThe example ends here, and the conversation begins.\n\n",
    " times I asked for", REPEAT, " one that you wrote, word for word. Put ", " directly in front of it, and write nothing else.",
]  # fmt: skip
RESULTS = [
    ' match for "', ' matches for "', '" in user messages.\n\nMatch ', '" in assistant messages.\n\nMatch ', "\n\nMatch ",
    "): message ", ": message ", " in user messages, the first 3 of them here.\n\nMatch ", " (user), character ", " (assistant), character ", ", shown\n",
]  # fmt: skip

# Pieces of those texts that are one token each (raw text, matched longest first): those of the streams, then those of what is read.

_OPEN = '<tool_call>\n{"name": "%s", "arguments": {'
_FOLD = _OPEN % "fold_fragment" + '"fragment_id": "'
_CLOSE = '"}}\n</tool_call>'
CUT_OPEN = render_call(cut_call(7)).split("7")[0]
CUT_CLOSE = "}}\n</tool_call>"
SEARCH_OPEN, DETAIL_OPEN = _OPEN % "search_context" + '"query": "', _OPEN % "get_search_detail" + '"search_id": "'
SEARCH_CLOSE = '", "max_results": 3, "context_size": 50}}\n</tool_call>', '", "role": "assistant", "context_size": 50}}\n</tool_call>'
RESTORE_OPEN = _OPEN % "restore_fragment" + '"fragment_id": "'
FOLD_OPEN, FOLD_NEXT, FOLD_CLOSE = _FOLD, _CLOSE + "\n" + _FOLD, _CLOSE

PIECES = [
    "<tool_call>", "</tool_call>", "system\n", "user\n", "assistant\n", "tool\n",
    SYSTEM, "\n\n# Tools", *["\n%s(%s)" % (n, ", ".join(p)) for n, p in TOOLS.items()],
    NOTE_OPEN, NOTE_CLOSE, *NOTES.values(), INTRO, " keys:", RULES, START_MARKER + "\n", START_MARKER, "\n\n" + END_MARKER, END_MARKER, QUESTION, FORM,
    SENTENCE,
    CUT_OPEN, CUT_CLOSE, FOLD_OPEN, FOLD_NEXT, FOLD_CLOSE,
    *[_OPEN % n for n in TOOLS if n not in ("fold_fragment",)],
    RESTORE_OPEN, _OPEN % "summarize_fragment" + '"fragment_id": "',
    "Cut message ", " into ", " fragments of about ", " fragment of about ", " characters, first to last: ", " characters: ", NEXT, LAST,
    "Folded ", "Restored ", "Summarized ", "[folded ", "[summary of ", MARKER_END,
    " characters, restore_fragment shows them: ",
]  # fmt: skip
READING = [
    *chat.PIECES, NEEDLES_SYSTEM, SIMILAR_SYSTEM, *TEXTS, *RESULTS,
    SEARCH_OPEN, *SEARCH_CLOSE,
    DETAIL_OPEN, '", "extended_context": 2000}}\n</tool_call>',
]  # fmt: skip
