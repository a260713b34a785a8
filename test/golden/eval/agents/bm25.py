"""Writes bm25.json: scores of the package rank_bm25 0.2.2 (pip install rank_bm25 numpy), which LongBench's retrieval runs.

python3 bm25.py > bm25.json
"""
import json
import random

from rank_bm25 import BM25Okapi

random.seed(7)
cases = []
for case in range(60):
    vocabulary = [f"w{i}" for i in range(random.randint(2, 14))]
    texts = [random.choices(vocabulary, k=random.randint(1, 12)) for _ in range(random.randint(1, 9))]
    query = random.choices(vocabulary + ["elsewhere"], k=random.randint(0, 8))
    settings = {} if case % 2 else {"k1": random.uniform(0, 3), "b": random.random(), "epsilon": random.random()}
    scores = BM25Okapi(texts, **settings).get_scores(query)
    cases.append({"texts": texts, "query": query, "settings": settings, "scores": [float(score) for score in scores]})
print(json.dumps(cases))
