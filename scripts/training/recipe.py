"""A real model learns from snapshots: first what was shown, or from its own tries by reward (Sculptor, equations 1 to 3). PyTorch and transformers, one loop.

  python recipe.py --model MODEL --data shown.parquet --loss shown
  python recipe.py --model MODEL --data tries.parquet --loss gspo      (or grpo: a ratio for each token, DeepSeekMath's)

MODEL is a folder of transformers, or a GGUF file, whose values are unpacked. A step takes the snapshots of some trajectories, computes each
token that they share once, and joins all learned tokens of a trajectory before it takes a ratio or a mean. `--record` writes the result of
each step. `--lora RANK` trains an adapter in place of weights. `--plain FILES` keeps what it predicts in other texts near to what the model
predicts alone. With `--checkpoint` an interrupted run continues where it was saved; `--begin`
starts with the adapter of another run's checkpoint.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import adapter
from snapshots import trajectories
from tree import tree

LOWER, UPPER, LM = 3e-4, 4e-4, 0.1  # Sculptor, table 4
TOKEN_CLIP = 0.2  # of GRPO, whose ratios are single tokens' (DeepSeekMath)
PLAIN = 256  # tokens of a plain text


def reward(rows):
    """Of a trajectory: appendix F's, which `kvfold collect` has worked out from the parts beside it."""
    return rows[0]["reward"]


def share(rows):
    """Not the paper's: what of the answer is right, for models whose tries are seldom right as a whole."""
    return rows[0]["points"]


def place(path):
    """Of a model: its folder, and which GGUF file in it, as arguments of transformers."""
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    return {"pretrained_model_name_or_path": folder, "gguf_file": name} if name.endswith(".gguf") else {"pretrained_model_name_or_path": path}


def loaded(path, device):
    """In 32 bits: what 16 are good for is computing, not small steps of weights."""
    return AutoModelForCausalLM.from_pretrained(**place(path), dtype=torch.float32, attn_implementation="sdpa").to(device)


def mask(model, seen, places):
    """What each token of a tree attends to, as transformers take it: a mask of one's own has to limit layers with a sliding window, too."""
    if seen is None or "sliding_attention" not in (getattr(model.config, "layer_types", None) or []):
        return seen if seen is None else seen[None, None]
    near = places[:, None] - places[None, :] < model.config.sliding_window
    return {"full_attention": seen[None, None], "sliding_attention": (seen & near)[None, None]}


def said(model, rows, device, half):
    """Log-probabilities of all learned tokens of a trajectory, over its snapshots, in the order of the file."""
    ids, places, seen, learned = (part if part is None else part.to(device) for part in tree(rows))
    # A vocabulary is wide: logits only where something is learned.
    with torch.autocast(device, torch.bfloat16, enabled=half):
        states = model.model(ids[None], position_ids=places[None], attention_mask=mask(model, seen, places)).last_hidden_state[0, learned[:, 1]]
        logits = model.lm_head(states)
    return torch.log_softmax(logits.float(), -1).gather(1, ids[learned[:, :1]])[:, 0]


def plain_texts(a):
    """The beginning of each plain text, in tokens, as a user says it."""
    tokenizer = AutoTokenizer.from_pretrained(**place(a.model))
    made = []
    for path in a.plain:
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(40 * PLAIN)
        body = text.split("\n\n", 1)[-1]  # without the head of a file, where that is short
        text = tokenizer.decode(tokenizer(body)["input_ids"][:PLAIN])
        made.append(torch.tensor(tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)))
    return made


def plain_step(model, ids, a):
    """The mean distance (KL) of what the adapted model predicts in a text from what the model alone predicts, in nats a token."""

    def predicted():
        with torch.autocast(a.device, torch.bfloat16, enabled=a.half):
            return torch.log_softmax(model(ids.to(a.device)[None]).logits[0].float(), -1)

    with torch.no_grad(), adapter.off(model):
        alone = predicted()
    distance = torch.nn.functional.kl_div(predicted(), alone, reduction="batchmean", log_target=True)
    distance.backward()
    return distance.item()


def before(rows):
    """What the model that acted had for them."""
    return np.concatenate([np.asarray(row["old_log_probs"])[np.flatnonzero(row["loss_mask"])] for row in rows])


def grouped(all_rows, worth, shuffle=None):
    """Groups whose tries are not all worth the same, as lists of (rows, worth, advantage); `shuffle`: a generator that deals the advantages of a group out anew."""
    groups = {}
    for rows in all_rows:
        groups.setdefault(rows[0]["uid"], []).append(rows)
    made = []
    for tries in groups.values():
        values = np.array([worth(rows) for rows in tries], np.float64)
        if values.std() > 0:
            gains = (values - values.mean()) / values.std()
            made.append(list(zip(tries, values, gains if shuffle is None else shuffle.permutation(gains))))
    return made


def shown_step(model, tries, a):
    """Mean loss of a token that is learned. Each trajectory's gradient is added up by itself: one is in memory."""
    total, tokens = 0.0, sum(int(np.sum(row["loss_mask"])) for rows in tries for row in rows)
    for rows in tries:
        loss = -said(model, rows, a.device, a.half).sum() / tokens
        loss.backward()
        total += loss.item()
    return {"loss": total, "tokens": tokens}


def reward_step(model, group, a, kept):
    """Equation 1 over the tries of a group (of GRPO: its mean over tokens), and the loss of a language model on the best ones, times 0.1."""
    lower, upper = (LOWER, UPPER) if a.loss == "gspo" else (TOKEN_CLIP, TOKEN_CLIP)
    best = max(value for _, value, _ in group)
    right = [value == best and value > 0 for _, value, _ in group]
    told = {"loss": 0.0, "objective": 0.0, "lm": 0.0, "ratioAway": 0.0, "clipped": 0, "apart": 0.0}
    for (rows, _, gain), is_right in zip(group, right):
        new = said(model, rows, a.device, a.half)
        key = rows[0]["trajectory"]
        if key not in kept:
            told["apart"] = max(told["apart"], float(np.abs(new.detach().cpu().numpy() - before(rows)).mean()))
            kept[key] = new.detach() if a.old == "trainer" else torch.tensor(before(rows), dtype=new.dtype, device=new.device)
        change = new - kept[key]
        ratio = torch.exp(change.mean() if a.loss == "gspo" else change)
        free, held = ratio * gain, torch.clamp(ratio, 1 - lower, 1 + upper) * gain
        raised = torch.minimum(free, held).mean() / len(group)
        likely = -new.mean() / max(1, sum(right)) if is_right else torch.zeros((), device=new.device)
        loss = -raised + LM * likely
        loss.backward()
        told["loss"] += loss.item()
        told["objective"] += raised.item()
        told["lm"] += likely.item()
        told["clipped"] += (held < free).float().mean().item()
        told["ratioAway"] += (ratio - 1).abs().mean().item() / len(group)
    return told


@torch.no_grad()
def held_out(model, tries, a):
    parts = [said(model, rows, a.device, a.half) for rows in tries]
    return -torch.cat(parts).mean().item()


def keep(model, optimizer, steps, held, kept, a):
    """Writes the checkpoint and the adapter, as far as they were asked for. `kept`: the log-probabilities that ratios are taken to."""
    if a.checkpoint:
        on_cpu = {name: value.cpu() for name, value in kept.items()}
        state = {"adapter": adapter.weights(model), "optimizer": optimizer.state_dict(), "steps": steps, "held": held, "kept": on_cpu}
        torch.save(state, a.checkpoint + ".part")
        os.replace(a.checkpoint + ".part", a.checkpoint)
    if a.adapter:
        adapter.write(model, a.adapter, os.path.basename(a.model))


def resume(model, optimizer, a):
    """Continues from the checkpoint. Returns the steps, the losses of held trajectories and the log-probabilities that ratios are taken to."""
    state = torch.load(a.checkpoint, weights_only=True)
    model.load_state_dict(state["adapter"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state["steps"], state["held"], {name: value.to(a.device) for name, value in state.get("kept", {}).items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True, nargs="+", help="Parquet files of kvfold collect --format verl, in this model's tokens; several are shuffled together (shown)")
    p.add_argument("--loss", choices=["shown", "gspo", "grpo"], default="shown")
    p.add_argument("--reward", choices=["appendix-f", "points"], default="appendix-f")
    p.add_argument("--shuffle", action="store_true", help="a control: the advantages of a group are dealt out among its tries by chance (gspo, grpo)")
    p.add_argument("--old", choices=["runtime", "trainer"], default="trainer", help="whose log-probabilities ratios are taken to: those in the file, or the trainer's own at first sight")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--batch", type=int, default=2, help="trajectories of a step (shown); of gspo and grpo a step is a group")
    p.add_argument("--rate", type=float, default=1e-5)
    p.add_argument("--warm", type=int, default=0, help="steps in which the rate rises from 0; afterwards it falls to 0 at the last step (default: the rate stays)")
    p.add_argument("--last", type=int, default=0, help="only so many of the last layers learn, for machines without a GPU (default: all of the model)")
    p.add_argument("--lora", type=int, default=0, metavar="RANK", help="an adapter of this rank learns, and all weights of the model stay")
    p.add_argument("--adapter", help="file for the adapter as GGUF, written at every checkpoint and at the end (with --lora)")
    p.add_argument("--checkpoint", help="file with the state of the run; a run that finds it continues from there (with --lora)")
    p.add_argument("--begin", help="checkpoint of another run, whose adapter this one starts with (with --lora)")
    p.add_argument("--plain", nargs="+", default=[], help="text files; at each step the adapter stays near the model on one of them (with --lora)")
    p.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    p.add_argument("--minutes", type=float, default=float("inf"), help="saves and ends after so many minutes")
    p.add_argument("--held", type=int, default=2, help="last trajectories of the file that are not learned, to be looked at before and after (shown)")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--half", action=argparse.BooleanOptionalAction, default=False, help="computes in bfloat16")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--apart", action="store_true", help="learns nothing: how far the log-probabilities here are from those in the file, by trajectory")
    p.add_argument("--save", help="folder for the weights, as transformers has them")
    p.add_argument("--record")
    a = p.parse_args()
    if a.adapter and not a.lora:
        p.error("--adapter writes what --lora RANK trains; name a rank, too")
    if a.plain and not a.lora:
        p.error("--plain compares the model with and without the adapter of --lora RANK; name a rank, too")
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = loaded(a.model, a.device)
    model.train()
    if a.device != "cpu":
        model.gradient_checkpointing_enable()
    all_rows = [rows for path in a.data for rows in trajectories(path)]
    if a.lora:
        said_tokens = {token for rows in all_rows for row in rows for token in np.asarray(row["input_ids"])[np.flatnonzero(row["loss_mask"])].tolist()}
        adapter.attach(model, a.lora, a.last, a.half, said_tokens)
    elif a.last:
        model.requires_grad_(False)
        for layer in model.model.layers[-a.last :]:
            layer.requires_grad_(True)
    taught = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(taught, lr=a.rate, weight_decay=0.0)
    steps, kept = [], {}
    if len(a.data) > 1:
        np.random.default_rng(1).shuffle(all_rows)
    for rows in all_rows if a.apart else []:
        with torch.no_grad():
            away = np.abs(said(model, rows, a.device, a.half).cpu().numpy() - before(rows))
        print(json.dumps({"trajectory": rows[0]["trajectory"], "tokens": len(away), "mean": round(float(away.mean()), 5), "most": round(float(away.max()), 4)}), flush=True)
    if a.apart:
        return
    plain = plain_texts(a) if a.plain else []
    held = all_rows[len(all_rows) - a.held :] if a.loss == "shown" else []
    learned = all_rows[: len(all_rows) - len(held)]
    shuffle = np.random.default_rng(1) if a.shuffle else None
    by_reward = a.loss != "shown"
    groups = grouped(all_rows, reward if a.reward == "appendix-f" else share, shuffle) if by_reward else []
    if by_reward and not groups:
        raise SystemExit("in every group all tries are worth the same: there is nothing to learn; collect more of them, or try --reward points")
    if a.begin:
        model.load_state_dict(torch.load(a.begin, weights_only=True)["adapter"], strict=False)
    if a.checkpoint and os.path.exists(a.checkpoint):
        steps, outside, kept = resume(model, optimizer, a)
    else:
        outside = [held_out(model, held, a)] if held else []
    began = time.time()
    while len(steps) < a.steps and time.time() - began < 60 * a.minutes:
        clock, at = time.time(), len(steps)
        if a.warm:
            left = (a.steps - at) / max(1, a.steps - a.warm)
            optimizer.param_groups[0]["lr"] = a.rate * min((at + 1) / a.warm, left)
        if a.loss == "shown":
            told = shown_step(model, [learned[(at * a.batch + n) % len(learned)] for n in range(a.batch)], a)
        else:
            told = reward_step(model, groups[at % len(groups)], a, kept)
        if plain:
            told["plain"] = plain_step(model, plain[at % len(plain)], a)
        told["gradient"] = float(torch.nn.utils.clip_grad_norm_(taught, 1.0))
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"step": at + 1, **told, "seconds": round(time.time() - clock, 1)})
        print(json.dumps(steps[-1]), flush=True)
        if len(steps) % a.every == 0:
            keep(model, optimizer, steps, outside, kept, a)
    if len(steps) % a.every:
        keep(model, optimizer, steps, outside, kept, a)
    if held and len(steps) == a.steps:
        outside.append(held_out(model, held, a))
        print(json.dumps({"held": outside}), flush=True)
    if a.save:
        model.save_pretrained(a.save)
    if a.record:
        about = {name: value for name, value in vars(a).items() if name not in ("record", "save", "data", "plain", "model", "adapter", "checkpoint")}
        with open(a.record, "w", encoding="utf-8") as f:
            json.dump({"model": os.path.basename(a.model), "settings": about, "trajectories": len(all_rows), "groups": len(groups), "steps": steps, "held": outside}, f)


if __name__ == "__main__":
    main()
