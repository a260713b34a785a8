"""The course that is not shipped yet: `python3 -m train.candidate` writes candidate/kvfold-tiny.gguf and how it was made, from its checkpoint."""
import argparse
import hashlib
import json
import os

from . import gguf
from .course import COURSES, Visiting
from .export import metadata, tensors
from .manifest import course_of, machine
from .shipped import BUILTIN
from .train import RUN, load, path_of

CANDIDATE = os.path.join(BUILTIN, "..", "candidate")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    model, tokenizer, state = load(path_of(a.run, Visiting.name))
    os.makedirs(CANDIDATE, exist_ok=True)
    path = os.path.join(CANDIDATE, "kvfold-tiny.gguf")
    gguf.write(path, metadata(model.config, tokenizer.vocabulary), tensors(model))
    with open(path, "rb") as f:
        raw = f.read()
    with open(os.path.join(BUILTIN, "manifest.json"), encoding="utf-8") as f:
        begun = json.load(f)
    made = {key: begun[key] for key in ("name", "license", "file", "bytes", "sha256", "format", "architecture")}
    made.update(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(), begunWith=begun["sha256"])
    made["training"] = {
        "command": "python3 -m train.train visiting",
        "courses": [*begun["training"]["courses"], course_of(COURSES[Visiting.name], state)],
        "machine": machine(),
    }
    path = os.path.join(CANDIDATE, "manifest.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(made, f, indent=2)
        f.write("\n")
    print("%s: step %d, %.2fM tokens" % (path, state["step"], state["tokens"] / 1e6))


if __name__ == "__main__":
    main()
