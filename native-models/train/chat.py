"""Plain talk: what the model says when nobody asks for what it can do."""

GREETINGS = ["hello", "hi", "hey", "good morning", "good evening", "hello there", "hi there", "how are you", "hey, how are you", "hello, how are you"]
ABILITIES = [
    "what can you do", "who are you", "what are you", "help", "what is this", "what do you do", "how do you work", "can you help me",
    "tell me about yourself", "what can I ask you", "what tasks do you know",
]  # fmt: skip
THANKS = ["thanks", "thank you", "thank you very much", "great", "good", "nice", "ok", "bye", "goodbye", "see you"]
ABOUT = (
    "I am a very small model that shows how a context is managed. I read streams of updates, trace how people are related, and find one of "
    "several similar texts again."
)
HELLO, UNKNOWN, WELCOME = "Hello! ", "I do not know. ", "You are welcome."
SIGNS = ["=", ": ", "; ", ",", "(", ")", "{", "}", "[", "]", "<", ">", "</", "/>", '="', '"', "'", "()", "->", "+", "-", "*", "**", "/", "_", ".", "&", "|", "#", "$", "%", "@", "!", "?", "0", "1", "\\"]
PIECES = [ABOUT, HELLO, UNKNOWN, WELCOME]


def exchange(rng, words):
    """(what somebody says, what the model answers)"""
    kind = rng.random()
    if kind < 0.25:
        return _written(rng, rng.choice(GREETINGS)), HELLO + ABOUT
    if kind < 0.5:
        return _written(rng, rng.choice(ABILITIES)), ABOUT
    if kind < 0.65:
        return _written(rng, rng.choice(THANKS)), WELCOME
    if kind < 0.8:
        return _coded(rng, words), UNKNOWN + ABOUT
    return _written(rng, " ".join(_word(rng, words) for _ in range(rng.randint(1, 25)))), UNKNOWN + ABOUT


def _coded(rng, words):
    """Words and signs, as in programs, markup and tables: values that nobody asks for."""
    signs = rng.sample(SIGNS, rng.randint(2, 8))
    lines = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        some = [_word(rng, words).strip() if rng.random() < 0.6 else rng.choice(signs) for _ in range(rng.randint(2, 14))]
        lines.append(rng.choice((" ", " ", "")).join(some))
    return "\n".join(lines)


def _word(rng, words):
    if rng.random() < 0.5:
        return rng.choice(rng.choice((words.spaced, words.capital, words.keys)))
    return "".join(rng.choice("etaoinshrdlucmwfygpbvk") for _ in range(rng.randint(1, 9)))


def _written(rng, text):
    """As people write: with or without a capital and a mark at the end."""
    return (text[:1].upper() + text[1:] if rng.random() < 0.6 else text) + rng.choice(["", "", ".", "!", "?", "?", " ?"])
