"""Loads trajectories by TRL's and verl's own loaders and compares what comes out with the file, token for token (scripts/training-parts.mjs loaders).

Arguments: Parquet of `kvfold collect --format verl`, JSON Lines of the same trajectories by `--format prompt-completion`, and the folder of the tokenizer.
"""
import json
import os
import sys

os.environ.setdefault("WANDB_MODE", "offline")
import datasets
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
IGNORED = -100


def trained_as(template):
    """The template with what an assistant says, its end included, marked for TRL's mask."""
    head = "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    end = "{{- '<|im_end|>\\n' -}}\n{%- endfor -%}"
    assert template.count(head) == 1 and template.count(end) == 1, "the template is another one than this script knows"
    opened = "{{- '<|im_start|>' + message['role'] + '\\n' -}}{%- if message['role'] == 'assistant' -%}{%- generation -%}BODY{{- '<|im_end|>' -}}{%- endgeneration -%}{%- else -%}BODY{{- '<|im_end|>' -}}{%- endif -%}{{- '\\n' -}}"
    start, stop = template.index(head), template.index(end)
    body = "{{- (message['content'] or '') -}}" + template[start + len(head) : stop]
    return template[:start] + opened.replace("BODY", body) + "\n{%- endfor -%}" + template[stop + len(end) :]


def sft(rows, tokenizer, **settings):
    """TRL's trainer on these rows; the model is there because it wants one."""
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer) + 64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1))
    common = {"output_dir": "/tmp/kvfold-loaders", "report_to": [], "use_cpu": True, "per_device_train_batch_size": 8, "max_length": None, "shuffle_dataset": False}
    return SFTTrainer(model=model, args=SFTConfig(**common, **settings), train_dataset=rows, processing_class=tokenizer)


def differences(name, got, expected):
    """How many rows are not the file's; `got` and `expected`: pairs of tokens and what is learned of them."""
    wrong = [at for at, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other]
    print("%s: %d rows, %d tokens, %d of them learned; %d rows differ" % (
        name, len(expected), sum(len(ids) for ids, _ in expected), sum(sum(1 for label in labels if label != IGNORED) for _, labels in expected), len(wrong)))  # fmt: skip
    return len(wrong)


def main():
    parquet, lines, folder = sys.argv[1:4]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.unk_token
    rows = datasets.load_dataset("parquet", data_files=parquet, split="train")
    expected = [(ids, labels) for ids, labels in zip(rows["input_ids"], rows["labels"])]
    wrong = 0

    # TRL, tokens that are there: what its trainer prepares, and a batch of its collator with the padding taken off.
    trainer = sft(rows.select_columns(["input_ids", "labels"]), tokenizer)
    made = trainer.train_dataset
    wrong += differences("TRL, input_ids and labels", list(zip(made["input_ids"], made["labels"])), expected)
    batch = trainer.data_collator([made[at] for at in range(8)])
    kept = [mask.bool() for mask in batch["attention_mask"]]
    got = [(ids[mask].tolist(), labels[mask].tolist()) for ids, labels, mask in zip(batch["input_ids"], batch["labels"], kept)]
    wrong += differences("TRL, a batch of it", got, expected[:8])

    # TRL, messages: its own tokenization by the template, loss on assistants behind the prompt.
    texts = datasets.load_dataset("json", data_files=lines, split="train").select_columns(["prompt", "completion", "tools"])
    tokenizer.chat_template = trained_as(tokenizer.chat_template)
    made = sft(texts, tokenizer, assistant_only_loss=True).train_dataset
    # The template goes on with a line feed behind the end of turn, which no snapshot has.
    whole = list(zip(made["input_ids"], made["labels"]))
    cut = [(ids[: len(own)], labels[: len(own)]) for (ids, labels), (own, _) in zip(whole, expected)]
    longer = {(len(ids) - len(own), tuple(labels[len(own) :])) for (ids, labels), (own, _) in zip(whole, expected)}
    print("TRL, prompt and completion: behind the end stand", sorted(longer)[:3])
    wrong += differences("TRL, prompt and completion", cut, expected) + (longer != {(1, (IGNORED,))})

    # verl: the class by its hook, its collator and a loader that it resumes from.
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.sft_trainer import create_sft_dataset
    from verl.utils.dataset.dataset_utils import SFTTensorCollator
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 16384, "truncation": "error", "custom_cls": {"path": os.path.join(HERE, "snapshots.py"), "name": "Snapshots"}})
    loader = StatefulDataLoader(create_sft_dataset([parquet], config, tokenizer, None), batch_size=16, collate_fn=SFTTensorCollator("no_padding"), drop_last=False)
    got = []
    for batch in loader:
        for ids, mask in zip(batch["input_ids"].unbind(), batch["loss_mask"].unbind()):
            got.append((ids.tolist(), torch.where(mask.bool(), ids, IGNORED).tolist()))
    wrong += differences("verl, Snapshots by data.custom_cls", got, expected)

    # verl's own RL loader: prompts, whose they are, and what is right.
    plain = OmegaConf.create({"prompt_key": "prompt", "max_prompt_length": 16384, "filter_overlong_prompts": False, "cache_dir": "/tmp/kvfold-loaders/rl"})
    prompts = RLHFDataset([parquet], tokenizer, plain)
    batch = collate_fn([prompts[at] for at in range(len(prompts))])
    shown = [[(message["role"], message["content"]) for message in prompt] for prompt in batch["raw_prompt"]]
    own = [[(message["role"], message["content"]) for message in prompt] for prompt in texts["prompt"]]
    truths = [json.loads(each["ground_truth"]) for each in batch["reward_model"]]
    off = sum(one != other for one, other in zip(shown, own, strict=True)) + sum("last" not in truth for truth in truths)
    off += list(batch["index"]) != list(range(len(prompts)))
    print("verl, RLHFDataset: %d prompts of %d groups; %d differ" % (len(prompts), len(set(batch["uid"])), off))
    raise SystemExit(1 if wrong + off else 0)


if __name__ == "__main__":
    main()
