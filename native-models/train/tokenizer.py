"""Text to token ids exactly as llama.cpp does for a "llama" (SentencePiece) vocabulary without BOS and space prefix.

USER_DEFINED and CONTROL texts are cut out first, longest text first; what is left is merged pair by pair, best score
first and leftmost among equals; a character without a token becomes bytes.
"""
import heapq
import re

from .words import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED


class Tokenizer:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        special = [t.text for t in vocabulary.tokens if t.kind in (CONTROL, USER_DEFINED, UNKNOWN)]
        special.sort(key=lambda t: -len(t.encode("utf-8")))
        self._special = special
        self._chunk = re.compile(",? [^ ,]*|,|[^ ,]+")  # no merge crosses the start of a space or of a comma
        self._cache = {}

    def encode(self, text):
        """Token ids of `text`; control texts are recognised (the runtime does the same for rendered templates)."""
        ids = []
        for part in self._split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                for chunk in self._chunk.findall(part):
                    ids.extend(self._merged(chunk))
        return ids

    def spelled(self, text):
        """Token ids of `text`, and where in it each begins."""
        ids, starts, at = [], [], 0
        for n in self.encode(text):
            token = self.vocabulary.tokens[n]
            if token.kind == BYTE:
                raise ValueError("only texts of known characters have places")
            ids.append(n)
            starts.append(at)
            at += len(token.text)
        return ids, starts

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            token = self.vocabulary.tokens[i]
            if token.kind == BYTE:
                out.append(int(token.text[3:5], 16))
            elif token.kind == NORMAL:
                out += token.text.replace(SPACE, " ").encode("utf-8")
            elif token.kind != UNKNOWN:
                out += token.text.encode("utf-8")
        return out.decode("utf-8", "replace")

    def _split(self, text):
        parts = [text]
        for special in self._special:
            if special not in text:
                continue
            ident, fresh = self.vocabulary.id[special], []
            for part in parts:
                if isinstance(part, int) or special not in part:
                    fresh.append(part)
                    continue
                for n, piece in enumerate(part.split(special)):
                    if n:
                        fresh.append(ident)
                    if piece:
                        fresh.append(piece)
            parts = fresh
        return parts

    def _merged(self, chunk):
        ids = self._cache.get(chunk)
        if ids is None:
            ids = self._merge(chunk)
            if len(self._cache) < 200000:
                self._cache[chunk] = ids
        return ids

    def _merge(self, chunk):
        vocabulary = self.vocabulary
        symbols = list(chunk.replace(" ", SPACE))
        before, after = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))
        queue = []

        def consider(left, right):
            if left < 0 or right >= len(symbols):
                return
            text = symbols[left] + symbols[right]
            ident = vocabulary.id.get(text)
            if ident is not None:
                heapq.heappush(queue, (-vocabulary.tokens[ident].score, left, right, text))

        for n in range(1, len(symbols)):
            consider(n - 1, n)
        while queue:
            _, left, right, text = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != text:
                continue
            symbols[left], symbols[right] = text, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        ids = []
        for symbol in filter(None, symbols):
            ident = vocabulary.id.get(symbol)
            if ident is None:
                ids.extend(vocabulary.id["<0x%02X>" % b] for b in symbol.encode("utf-8"))
            else:
                ids.append(ident)
        return ids
