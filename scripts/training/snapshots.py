"""Snapshots as `kvfold collect --format verl` writes them: a dataset for verl (`data.custom_cls`), and trajectories of them for a loop of one's own."""
import pandas as pd
import torch
from torch.utils.data import Dataset


class Snapshots(Dataset):
    """Rows as verl's SFT trainer wants them: the tokens that are there, and no tokenizer. Which trajectory a row is of is not told to the loss."""

    def __init__(self, parquet_files, tokenizer=None, config=None, processor=None, max_samples=-1):
        config = config or {}
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self.rows = pd.concat([pd.read_parquet(path, columns=["input_ids", "loss_mask"]) for path in files], ignore_index=True)
        if max_samples > 0:
            self.rows = self.rows.head(max_samples)
        self.pad_mode, self.longest = config.get("pad_mode", "no_padding"), config.get("max_length", 1024)
        self.cuts = config.get("truncation", "error") != "error"
        self.pad = getattr(tokenizer, "pad_token_id", None) or 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        ids, mask = (torch.tensor(list(self.rows.iloc[at][column]), dtype=torch.long) for column in ("input_ids", "loss_mask"))
        if len(ids) > self.longest:
            if not self.cuts:
                raise ValueError("row %d has %d tokens, and data.max_length is %d" % (at, len(ids), self.longest))
            # What is learned stands at the end of a snapshot.
            ids, mask = ids[-self.longest :], mask[-self.longest :]
        row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}
        if self.pad_mode == "no_padding":
            return row
        more = self.longest - len(ids)
        row["attention_mask"] = torch.ones(len(ids), dtype=torch.long)
        return {name: torch.nn.functional.pad(of, (0, more), value=self.pad if name == "input_ids" else 0) for name, of in row.items()}


def trajectories(path):
    """Lists of rows, each a trajectory with its snapshots in order."""
    rows = pd.read_parquet(path)
    return [own.sort_values("snapshot").to_dict("records") for _, own in rows.groupby("trajectory", sort=False)]
