#!/bin/bash
# A taught adapter learns from its own tries by reward: bash scripts/training/rewards.sh FOLDER [more options of recipe.py].
# FOLDER is that of adapter.sh. The adapter plays each of 8 streams 6 times at temperature 1. The reward is the share of the values that are
# right. Three adapters learn from the same tries: by GSPO, by GRPO, and by GSPO with the advantages dealt out by chance, as a control.
# Each group is visited twice: at the first visit all ratios are 1, and GSPO and GRPO give the same gradient. Finished files are kept.
set -euo pipefail
folder=$1
shift
here=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
model=${KVFOLD_REAL_MODELS:-$HOME/.cache/kvfold/real}/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
python=${KVFOLD_TRAINING:-$HOME/.cache/kvfold/training}/venv/bin/python

tries=$folder/tries.parquet
[ -f "$tries" ] || node "$here/dist/cli/main.js" collect pi-llm --keys 6 --n 20 --samples 8 --rollouts 6 --seed 8200 --temperature 1 \
  --max-tokens 120 --max-calls 8 --teacher model --model "$model" --lora "$folder/acm.gguf" --format verl --out "$tries"

export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456
for way in gspo grpo 'gspo --shuffle'; do
  name=${way/ --/-}-16
  [ -f "$folder/$name.json" ] || "$python" "$here/scripts/training/recipe.py" --model "$model" --data "$tries" --loss $way --reward points --begin "$folder/checkpoint.pt" \
    --lora 8 --last 12 --half --threads 2 --steps 16 --rate 5e-5 --adapter "$folder/$name.gguf" --record "$folder/$name.json" "$@"
done
