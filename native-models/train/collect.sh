#!/bin/sh
# Trajectories of the tasks that are read, into train/.run: called by run.sh, from native-models/, with the model that knows their words.
# A file that was begun is gone on with. Seeds from 3,000,000,001 on are for training alone.
set -e
model=$1
write() { # file seed options...
  file=$1 seed=$2
  shift 2
  (cd .. && node --import tsx src/cli/main.ts collect "$@" --seed "$seed" --model "native-models/$model" --threads 1 \
    --out "native-models/train/.run/$file.jsonl")
}
collect() { # task agent needles lengths samples file seed
  write "$6" "$7" "$1" --agent "$2" --needles "$3" --length "$4" --samples "$5"
}
orders() { # order keys list-of-n samples seed
  option="--order $1"
  [ "$1" = shuffled ] && option=
  write "orders.$1-$2" "$5" pi-llm $option --keys "$2" --n "$3" --samples "$4"
}
for row in "500 300 100 2 500 300" "1000 250 60 2,4 400 150" "2000 120 30 2,4,8 240 50"; do
  set -- $row
  collect needles sculptor 2,3,4,5 "$1" "$2" "needles.$1" 3000000001
  collect needles plain 2,3,4,5 "$1" "$3" "needles-plain.$1" 3000000002
  collect similar sculptor "$4" "$1" "$5" "similar.$1" 3000000001
  collect similar plain "$4" "$1" "$6" "similar-plain.$1" 3000000002
done
collect needles sculptor 2,3,4,5 4000,8000 50 needles.long 3000000001
collect similar sculptor 2,4,8 4000,8000 200 similar.long 3000000001
orders middle-last 46 12,15,16,18,20,21,24 25 3000000001
orders start-last 46 10,12,15,16,18,20,24 25 3000000002
orders shuffled 46 9,10,12,14,16,18,20,24 20 3000000006
for keys in 8 12 18 24; do
  orders middle-last $keys 12,16,20,24 20 3000000003
  orders start-last $keys 12,16,20,24 20 3000000004
  orders shuffled $keys 12,16,20,24 20 3000000005
done
# What follows a call that failed, which is not the model's.
write orders.stumble-46 3000000007 pi-llm --keys 46 --n 2,4,8,12,16,24 --samples 20 --stumble
write orders.stumble-12 3000000007 pi-llm --keys 12 --n 2,4,8,16,24 --samples 40 --stumble
write needles.stumble 3000000007 needles --agent sculptor --needles 2,3,4,5 --length 500,1000 --samples 40 --stumble
write similar.stumble 3000000007 similar --agent sculptor --needles 2,4 --length 1000 --samples 40 --stumble
