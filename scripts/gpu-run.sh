#!/usr/bin/env bash
# What kvfold does on a GPU, as one record: bash scripts/gpu-run.sh --gpu cuda|vulkan|cpu [--small] [--limit SECONDS] [--out FILE]
# A step that takes longer than the limit is stopped and the record says so: a lent machine goes back when its time is up.
# For a machine without a network: node_modules/, build/ and dist/ come along (npm ci && npm run build elsewhere). Of the CUDA package only
# libggml-cuda.so may be missing (it is large); then it is built here, for one generation of GPUs (CUDA_ARCH, default 90: Hopper).
set -euo pipefail
cd "$(dirname "$0")/.."

gpu=cuda small='' limit=3600 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --small) small=--small; shift ;;
    --limit) limit=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) echo "gpu-run: unknown word $1" >&2; exit 2 ;;
  esac
done
out=${out:-bench/results/gpu-$gpu.json}
for need in node_modules/node-llama-cpp build/kvfold.node dist/cli/main.js; do
  [ -e "$need" ] || { echo "gpu-run: $need is missing; run npm ci && npm run build and bring it along" >&2; exit 1; }
done

# llama.cpp's CUDA backend out of the source bundle that node-llama-cpp ships: the same commit as its libraries beside it.
build_cuda() {
  local package=node_modules/@node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda source=.cache/gpu-run/llama.cpp
  [ -d "$package" ] || { echo "gpu-run: $package is missing; bring it along without libggml-cuda.so" >&2; return 1; }
  export PATH=$PATH:/usr/local/cuda/bin
  for tool in git cmake nvcc; do
    command -v "$tool" >/dev/null || { echo "gpu-run: $tool is needed to build the CUDA backend" >&2; return 1; }
  done
  [ -d "$source" ] || git clone --quiet node_modules/node-llama-cpp/llama/gitRelease.bundle "$source"
  touch "$source/ggml/ggml.pc.in" # the bundle has it not, and CMake asks for it
  cmake -S "$source/ggml" -B "$source/build-cuda" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON \
    -DGGML_CUDA=ON -DGGML_NATIVE=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCH:-90}"
  cmake --build "$source/build-cuda" --target ggml-cuda --parallel "$(nproc)"
  cp "$(find "$source/build-cuda" -name libggml-cuda.so | head -1)" "$package/"
}

which_device() { if [ "$gpu" = cpu ]; then echo '"cpu"'; else node scripts/test-gpu.mjs --which --gpu "$gpu"; fi; }
if ! device=$(which_device 2>/dev/null) && [ "$gpu" = cuda ]; then
  echo 'gpu-run: the CUDA library that came along does not load or compute here; building one'
  build_cuda
  device=$(which_device) || true
fi
[ -n "$device" ] || { echo "gpu-run: no device for $gpu on this machine" >&2; exit 1; }
# What the device needs in the environment: a software one is taken only where its index is named.
while IFS= read -r variable; do export "${variable?}"; done < <(node -e '
for (const [name, value] of Object.entries(JSON.parse(process.argv[1]).extra ?? {})) console.log(`${name}=${value}`)' "$device")
[ "$gpu" = cpu ] || export KVFOLD_TEST_GPU=$gpu

export NO_COLOR=1
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
failed=0
# step NAME COMMAND...: runs it, keeps what it says and how it ended.
step() {
  local name=$1 begun status=0
  shift
  echo "== $name: $*"
  begun=$(date +%s)
  timeout "$limit" "$@" >"$parts/$name.out" 2>"$parts/$name.err" || status=$?
  tail -n 3 "$parts/$name.out"
  [ "$status" = 0 ] || { failed=1; tail -n 15 "$parts/$name.err"; }
  printf '%s\n' "$*" >"$parts/$name.command"
  printf '%s %s\n' "$status" "$(($(date +%s) - begun))" >"$parts/$name.ended"
}

step bench node --import tsx bench/main.ts gpu --gpu "$gpu" $small --json
# The same on a model as large as people run on such a card: the shape of Qwen3 1.7B, random weights.
if [ -z "$small" ]; then
  step synth node dist/cli/main.js model synth "$parts/1.7b.gguf" --layers 28 --embedding 2048 --heads 16 --kv-heads 8 --feed-forward 6144 \
    --vocabulary 151936 --context 65536 --rope-base 1000000
  step bench-1.7b node --import tsx bench/main.ts gpu --gpu "$gpu" --model "$parts/1.7b.gguf" --json
  rm -f "$parts/1.7b.gguf"
fi
words=()
[ -z "$small" ] || words=(--n 2 --keys 4 --context 1024 --contract exact)
step attention node dist/cli/main.js attention pi-llm --gpu "$gpu" --seeds 1 "${words[@]}" --out "$parts/attention"
# vLLM and SGLang as our client sees them, where `node scripts/engine-parts.mjs vllm sglang` put them; both need CUDA.
parts_folder=${KVFOLD_ENGINE_PARTS:-$HOME/.cache/kvfold/engines}
for engine in vllm sglang; do
  [ "$gpu" = cuda ] && [ -x "$parts_folder/$engine/bin/python" ] || continue
  [ -d "$parts_folder/tiny-model" ] || "$parts_folder/$engine/bin/python" bench/fleet/engines/tiny_model.py "$parts_folder/tiny-model"
  name=$([ "$engine" = vllm ] && echo vLLM || echo SGLang)
  step "engine-table-$engine" node --import tsx bench/main.ts engine-table --only "$name" --json
done
if [ "$gpu" != cpu ]; then step tests node scripts/test-gpu.mjs --gpu "$gpu" ${small:+--short}; fi
# The same with products of F32 in F32 and not in TF32: whether what fails above fails for that.
if [ "$gpu" = cuda ]; then step tests-f32 env NVIDIA_TF32_OVERRIDE=0 node scripts/test-gpu.mjs --gpu cuda ${small:+--short}; fi

mkdir -p "$(dirname "$out")"
PARTS=$parts DEVICE=$device GPU=$gpu SMALL=$small node --input-type=module -e '
import { execFileSync } from "node:child_process"
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { createHash } from "node:crypto"
import { cpus, loadavg, totalmem } from "node:os"
const { PARTS, DEVICE, GPU, SMALL } = process.env
const said = (program, ...words) => {
  try { return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim() } catch { return null }
}
const read = (name) => (existsSync(`${PARTS}/${name}`) ? readFileSync(`${PARTS}/${name}`, "utf8").trim() : "")
const json = (text) => { try { return JSON.parse(text) } catch { return undefined } }
const steps = readdirSync(PARTS).filter((name) => name.endsWith(".command")).map((file) => {
  const name = file.slice(0, -8)
  const [status, seconds] = read(`${name}.ended`).split(" ").map(Number)
  const [lines, errors] = [read(`${name}.out`).split("\n"), read(`${name}.err`).split("\n")]
  const result = json(lines.at(-1))
  const failed = errors.filter((line) => /^\s*FAIL|Error: /.test(line))
  return { name, command: read(file), status, seconds, ...(result === undefined ? { output: lines.slice(-12) } : { result }), ...(status === 0 ? {} : { failed, errors: errors.slice(-15) }) }
})
const machine = {
  device: json(DEVICE), gpus: said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
  nvcc: said("nvcc", "--version")?.split("\n").at(-1) ?? null, cpu: cpus()[0].model, cores: cpus().length, memory: totalmem(), load: loadavg(), node: process.version,
}
const builtin = readFileSync("native-models/builtin/kvfold-tiny.gguf")
const model = { name: "kvfold-tiny", of: "attention", sha256: createHash("sha256").update(builtin).digest("hex") }
const record = { date: new Date().toISOString(), commit: said("git", "rev-parse", "HEAD"), gpu: GPU, small: SMALL !== "", machine, model, steps }
console.log(JSON.stringify(record, null, 2).replaceAll(PARTS, "OUT").replaceAll(`${process.cwd()}/`, ""))
' >"$out"
echo "gpu-run: $out"
exit "$failed"
