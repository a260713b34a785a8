#!/usr/bin/env bash
# What gpu-run.sh needs on a bare machine without a network, in files of some 25 MB: bash scripts/gpu-pack.sh FOLDER, after npm ci && npm run build.
# There, in a checkout of the same commit: xz -dc modules.tar.xz | tar x; xz -dc node.xz > /usr/local/bin/node && chmod +x /usr/local/bin/node;
# mkdir -p .cache/gpu-run/llama.cpp && tar xJf ggml.tar.xz -C .cache/gpu-run/llama.cpp. With CUDA's cuBLAS in LD_LIBRARY_PATH gpu-run.sh builds the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo 'gpu-pack: the folder to write to, and nothing else' >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)

# Neither benches nor the suites of test-gpu.mjs load these.
left=(node-llama-cpp/llama/gitRelease.bundle onnxruntime-node onnxruntime-web playwright-core typescript @shikijs @img sharp knip eslint
  @typescript-eslint typedoc @huggingface/transformers @modelcontextprotocol/server-everything @oxc-parser @oxc-resolver oxc-parser bare-url
  markdown-it jiti dompurify openai/src @anthropic-ai/sdk/src @libsql/linux-x64-musl @rollup/rollup-linux-x64-musl
  @node-llama-cpp/linux-arm64 @node-llama-cpp/linux-armv7l @node-llama-cpp/linux-x64-vulkan @node-llama-cpp/linux-x64-cuda-ext
  @node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda/libggml-cuda.so)
tar c "${left[@]/#/--exclude=node_modules/}" --exclude='*.map' --exclude='*.d.ts' --exclude='*.d.mts' --exclude='*.d.cts' \
  node_modules build/kvfold.node build/kvfold.json build/llama.cpp dist | xz -9 >"$out/modules.tar.xz"
xz -6 -c "$(command -v node)" >"$out/node.xz"

source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git clone --quiet --bare node_modules/node-llama-cpp/llama/gitRelease.bundle "$source"
git -C "$source" archive HEAD ggml | xz -6 >"$out/ggml.tar.xz"
ls -l "$out"
