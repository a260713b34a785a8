#!/bin/sh
# From nothing to builtin/kvfold-tiny.gguf, onnx/, golden.json and manifest.json. Needs python3 with numpy and torch
# (2.x, faster by far; 1.13, which Debian has as python3-torch with libopenblas0-pthread, is enough); and this project, installed: the tasks that are read are
# collected by it. Run it again to resume; delete train/.run to start over. WIDER, VISITING and TOOLS: tokens of the three longest courses, if not
# 45, 36 and 38 millions, which two cores with AMX do in less than four hours; the shipped weights have 81, 59 and 103. SEED: default 1. PROCESSES:
# default all cores.
set -e
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
# One large heap that is never given back: the same buffers are needed again in every step, and a third of the time went into fresh pages.
# The code of products is kept as well, a piece for each of their sizes.
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=8192
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1
mkdir -p train/.run
train() {
  $python -m train.train "$@" --seed ${SEED:-1} ${PROCESSES:+--processes $PROCESSES}
}
(cd .. && node --import tsx native-models/train/reading.mts)
train streams
$python -m train.export --begin --out train/.run/begin.gguf
sh train/collect.sh train/.run/begin.gguf
train everything
train passages
train wider ${WIDER:+--tokens $WIDER}
train visiting ${VISITING:+--tokens $VISITING}
train tools ${TOOLS:+--tokens $TOOLS}
$python -m train.export
$python -m train.export_onnx
$python -m train.evaluate --samples 6
$python -m train.golden
$python -m train.manifest
