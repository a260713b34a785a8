"""What was made and how: `python3 -m train.manifest` writes builtin/manifest.json from the GGUF, the checkpoint and the evaluation."""
import argparse
import hashlib
import json
import os
import platform

import torch

from .course import LAST, STAGES, before
from .shipped import BUILTIN, GGUF_PATH
from .train import RUN, load, path_of

_FROM, _TO = "<!-- measured: written by train/manifest.py -->", "<!-- end of measured -->"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--run", default=RUN)
    a = p.parse_args()
    model, tokenizer, state = load(path_of(a.run, LAST.name))
    with open(os.path.join(a.run, "evaluation.json"), encoding="utf-8") as f:
        evaluation = json.load(f)
    if evaluation["step"] != state["step"]:
        raise SystemExit("the evaluation belongs to step %d, the checkpoint is step %d" % (evaluation["step"], state["step"]))
    with open(GGUF_PATH, "rb") as f:
        raw = f.read()
    data = {
        "name": "kvfold-tiny",
        "license": "MIT",
        "file": os.path.basename(GGUF_PATH),
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "format": "GGUF v3, F16 matrices, F32 norms and biases",
        "architecture": {"kind": "llama", **model.config._asdict(), "vocabulary": len(tokenizer.vocabulary), "parameters": model.table().numel() + sum(
            t.numel() for n, t in model.named_parameters() if n.startswith(("layers", "norm")))},  # fmt: skip
        "training": {
            "command": "native-models/train/run.sh",
            "stages": STAGES,
            "courses": _courses(LAST, state, a.run),
            "machine": _machine(),
        },
        "evaluation": {
            "about": "46 keys, n updates each; greedy; held-out seeds; weights rounded to F16, in PyTorch. accuracy: right values of all; older: share "
            "of the wrong answers that are an older value of the same key; clean: episodes whose every call, id and answer line "
            "was right in form; tokens: mean prompt of the answering step.",
            "seconds": evaluation["seconds"],
            "table": evaluation["table"],
        },
    }
    path = os.path.join(BUILTIN, "manifest.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, indent=2)
        f.write("\n")
    print(path)
    _model_card(data)


def _courses(course, state, run):
    """All up to this one: as the checkpoint knows them, if it was made from what is shipped; else from those of the courses before."""
    courses, earlier = state.get("before", []), before(course)
    if "before" not in state and earlier:
        courses = _courses(earlier, torch.load(path_of(run, earlier.name))["state"], run)
    return [*courses, _course_of(course, state) if "settings" in state else state["made"]]


def _course_of(course, state):
    return {
        "name": course.name,
        "settings": {k: v for k, v in state["settings"].items() if k not in ("run", "course")},
        "steps": state["step"],
        "tokens": state["tokens"],
        "tokensOf": state["kinds"],
        "plainWithoutValues": state["form"],
        "samplesOf": state["samples"],
        "share": course.share,
        "loss": round(state["loss"], 5),
        "wallSeconds": round(state["wall"]),
        "cpuSeconds": round(state["cpu"]),
    }


def _model_card(data):
    """Puts the measured numbers into the README, between its two marks."""
    path = os.path.join(BUILTIN, "..", "README.md")
    with open(path, encoding="utf-8") as f:
        head, rest = f.read().split(_FROM)
    lines = ["| n | plain | with tools | tokens plain | tokens with tools | errors that are older values: plain, tools | clean loops |", "| --- " * 7 + "|"]
    for row in data["evaluation"]["table"]:
        p, w = row["plain"], row["tools"]
        older = ", ".join("-" if x["older"] is None else "%.0f %%" % (100 * x["older"]) for x in (p, w))
        cells = [row["n"], "%.1f %%" % (100 * p["accuracy"]), "%.1f %%" % (100 * w["accuracy"]), p["tokens"], w["tokens"], older, "%.0f %%" % (100 * w["clean"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    count = data["evaluation"]["table"][0]["samples"]
    lines += ["", "%d held-out streams a row and agent, 46 keys, greedy." % count]
    for t in data["training"]["courses"]:
        of = ", ".join("%s %.2f M" % (kind, n / 1e6) for kind, n in t["tokensOf"].items())
        lines += ["", "Course \"%s\": %d steps on %.2f M tokens (%s); %.0f minutes of CPU time." % (
            t["name"], t["steps"], t["tokens"] / 1e6, of, t["cpuSeconds"] / 60)]  # fmt: skip
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + _FROM + "\n" + "\n".join(lines) + "\n" + _TO + rest.split(_TO)[1])


def _machine():
    return _cpu() + ", PyTorch " + torch.__version__ + ", Python " + platform.python_version()


def _cpu():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


if __name__ == "__main__":
    main()
