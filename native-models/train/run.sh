#!/bin/sh
# From nothing to builtin/kvfold-tiny.gguf, onnx/, golden.json and manifest.json. Needs python3 with numpy and torch
# (2.x, faster by far; 1.13, which Debian has as python3-torch with libopenblas0-pthread, is enough); and this project, installed: the tasks that are read are
# collected by it. Run it again to resume; delete train/.run to start over. WIDER and VISITING: tokens of the two longest courses, if not the
# 81 and 59 millions of the shipped weights.
set -e
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
# One large heap that is never given back: the same buffers are needed again in every step, and a third of the time went into fresh pages.
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1
mkdir -p train/.run
(cd .. && node --import tsx native-models/train/reading.mts)
$python -m train.train streams
$python -m train.export --begin --out train/.run/begin.gguf
sh train/collect.sh train/.run/begin.gguf
$python -m train.train everything
$python -m train.train passages
$python -m train.train wider ${WIDER:+--tokens $WIDER}
$python -m train.train visiting ${VISITING:+--tokens $VISITING}
$python -m train.export
$python -m train.export_onnx
$python -m train.evaluate --samples 6
$python -m train.golden
$python -m train.manifest
