"""Snapshots of one trajectory as a tree of tokens. Snapshots share their beginnings, so each shared token is computed once."""
import numpy as np
import torch


def tree(rows):
    """Joins rows with `input_ids` and `loss_mask`.

    Returns `ids` and `places` (the position of each token in its snapshot), both of length n; `seen`, n x n, true where a token attends
    to another (its ancestors and itself), or None where each token sees all earlier ones; and `learned`, pairs (a learned token, the
    token before it) in the order of the rows.
    """
    ids, parents, places, children, learned = [], [], [], {}, []
    for row in rows:
        parent = -1
        for place, (token, counts) in enumerate(zip(row["input_ids"], row["loss_mask"])):
            key = (parent, int(token))
            if key not in children:
                children[key] = len(ids)
                ids.append(int(token))
                parents.append(parent)
                places.append(place)
            if counts:
                learned.append((children[key], parent))
            parent = children[key]
    return torch.tensor(ids), torch.tensor(places), ancestors(parents), torch.tensor(learned)


def ancestors(parents):
    if parents == list(range(-1, len(parents) - 1)):
        return None
    seen = np.eye(len(parents), dtype=bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            seen[token] |= seen[parent]
    return torch.from_numpy(seen)
