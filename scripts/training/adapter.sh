#!/bin/bash
# Trains the context tools into a LoRA adapter: bash scripts/training/adapter.sh FOLDER [SEED, 1 to 7] [more options of recipe.py].
# Needs npm run build, npm run models:real -- --only qwen-0.5b, and node scripts/training-parts.mjs. A script that knows the
# answers plays 470 samples in the model's own template, and the model answers 54 questions that need no tool, with and without a system
# prompt. Then the adapter learns from what was shown at each step. Finished files are kept, and an interrupted training continues from its
# last checkpoint.
set -euo pipefail
folder=$1 seed=${2:-1}
shift; shift || true
here=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
model=${KVFOLD_REAL_MODELS:-$HOME/.cache/kvfold/real}/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
python=${KVFOLD_TRAINING:-$HOME/.cache/kvfold/training}/venv/bin/python
mkdir -p "$folder"
begun=$folder/adapter.sh
[ -f "$begun" ] || cp "$here/scripts/training/adapter.sh" "$begun"
cmp -s "$here/scripts/training/adapter.sh" "$begun" || { echo "$folder was begun by another version of this script ($begun); name another folder." >&2; exit 1; }

# collect NAME TASK OPTIONS: each has seeds of its own, all below 9000, from which on the bench's are.
count=0 files=()
collect() {
  local file=$folder/$1.parquet own=$((1000 * seed + 50 * ++count))
  files+=("$file")
  shift
  [ -f "$file" ] || node "$here/dist/cli/main.js" collect "$@" --seed "$own" --model "$model" --format verl --out "$file"
}
collect four pi-llm --keys 4 --n 12,16,24 --samples 6
collect six pi-llm --keys 6 --n 12,16,20,24 --samples 6
collect eight pi-llm --keys 8 --n 12,16 --samples 6
collect twelve pi-llm --keys 12 --n 10,12 --samples 3
# Few streams are so short that nothing is to be folded. With many of them, the adapter also answered long ones without a fold.
collect short pi-llm --keys 6 --n 4,8 --samples 6
collect general pi-llm --system-prompt general --keys 6 --n 12,16,24 --samples 4
collect back pi-llm --keys 6 --n 12 --order start-last --samples 8
collect stumble pi-llm --keys 6 --n 16 --samples 8 --stumble
collect plain pi-llm --keys 6 --n 8,16 --agent plain --samples 6
collect none pi-llm --system-prompt none --keys 5 --n 10,12,16,20 --samples 4
# The same streams in 24 wordings. An adapter without these lessons cut streams in other words at wrong places, and folded none.
words=(--wordings "$here/scripts/training/wordings.json" --samples 1)
collect worded pi-llm "${words[@]}" --keys 4 --n 12,16
collect worded-five pi-llm "${words[@]}" --keys 5 --n 10
collect worded-short pi-llm "${words[@]}" --keys 5 --n 5
collect worded-back pi-llm "${words[@]}" --keys 6 --n 10 --order start-last
collect worded-plain pi-llm "${words[@]}" --keys 4 --n 12 --agent plain
collect worded-general pi-llm "${words[@]}" --system-prompt general --keys 4 --n 12
collect worded-none pi-llm "${words[@]}" --system-prompt none --keys 5 --n 10,14
collect chain needles --needles 2,3,4 --length 512,1k --samples 13
collect chain-general needles --system-prompt general --needles 2,3 --length 512 --samples 8
collect chain-none needles --system-prompt none --needles 2,3 --length 512 --samples 6
collect chain-stumble needles --needles 2,3 --length 512 --samples 4 --stumble
collect similar similar --needles 2,3 --length 1k --samples 6
# The tools are there, and the answer needs none. The words are the model's own.
collect chat chat --data "$here/scripts/training/questions.jsonl" --teacher model --max-tokens 160
# A server's clients send no system prompt that explains the tools. An adapter without these samples folded all of a stream there.
collect chat-none chat --system-prompt none --data "$here/scripts/training/questions.jsonl" --teacher model --max-tokens 160

# Prose and code in which the adapter is to change nothing: descriptions of Python packages, and programs of Python's library.
mapfile -t plain < <("$python" - <<'PYTHON'
import glob, os, sysconfig
paths = sysconfig.get_paths()
prose = sorted(path for path in glob.glob(os.path.join(paths["purelib"], "*.dist-info", "METADATA")) if os.path.getsize(path) > 3000)
code = sorted(path for path in glob.glob(os.path.join(paths["stdlib"], "*.py")) if os.path.getsize(path) > 3000)
print("\n".join(path for pair in zip(prose, code) for path in pair))
PYTHON
)

# Large blocks of memory are kept instead of given back: without that, a step takes half as long again.
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456
"$python" "$here/scripts/training/recipe.py" --model "$model" --data "${files[@]}" --lora 8 --last 12 --half --batch 2 --steps 280 --rate 3e-4 --warm 5 \
  --held 8 --plain "${plain[@]}" --checkpoint "$folder/checkpoint.pt" --adapter "$folder/acm.gguf" --record "$folder/record.json" "$@"
