"""Writes jinja2.json: hashes of what Python's Jinja2, set up as Hugging Face's apply_chat_template does, makes of the requests
that test/chat/templates.test.ts leaves in .cache/jinja2-requests.json (run that test once before).

    python3 test/golden/chat/make-jinja2-golden.py        (made with Jinja2 3.1.6)
"""
import hashlib
import json
import pathlib
import re
from datetime import datetime

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

here = pathlib.Path(__file__).resolve().parent
cache = here.parents[2] / ".cache"
NOW = datetime(2026, 1, 2, 3, 4, 5)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = refuse
environment.globals["strftime_now"] = NOW.strftime

hashes, differences = {}, {}
for request in json.loads((cache / "jinja2-requests.json").read_text()):
    folder = next(cache.glob("bundle-*/models/templates"))
    source = (folder / f"{request['template']}.jinja").read_text()
    source = re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", source)
    given = {
        "messages": request["messages"],
        "add_generation_prompt": request["generationPrompt"],
        "bos_token": "<s>",
        "eos_token": "</s>",
        "datetime": NOW.strftime("%b %d %Y %H:%M:%S"),
    }
    if "tools" in request:
        given["tools"] = request["tools"]
        given["functions"] = "" if request["tools"] is None else to_json(request["tools"], indent=2)
    key = f"{request['template']} {request['conversation']}{' +prompt' if request['generationPrompt'] else ''}"
    try:
        text = environment.from_string(source).render(**given)
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        differences[key] = f"Jinja2 refuses: {type(error).__name__}: {error}"
        continue
    hashes[key] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if text != request["ours"] and "|safe" in source:
        differences[key] = "the template's |safe makes Jinja2 escape the JSON after it for HTML"
(here / "jinja2.json").write_text(json.dumps({"hashes": hashes, "differences": differences}, indent=1, sort_keys=True) + "\n")
print(len(hashes), "hashes,", len(differences), "differences")
