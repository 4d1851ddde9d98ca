"""Stock Feast on its own Cassandra store: `fill` writes the platform's values, `read` times reads.

    fill|read FOLDER CASSANDRA_PORT KEYSPACE REPEATS

FOLDER has a Parquet file per view, with the values that the platform serves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

from tests.benchmarks.competitors.feast_stock import features_store
from tests.benchmarks.competitors.latency import measure


def main() -> None:
    """Fill the store, or read it."""
    action, folder, port, keyspace, repeats = sys.argv[1:]
    files = {path.stem: path for path in sorted(Path(folder).glob("*.parquet"))}
    sequences = [name for name in files if name != "user_representation"]
    store = features_store(Path(folder), int(port), keyspace, sequences)
    if action == "fill":
        for name, path in files.items():
            store.write_to_online_store(name, pd.read_parquet(path))
        print(json.dumps({"views": len(files)}), flush=True)
        return
    users = pd.read_parquet(files["user_representation"], columns=["user_id"])["user_id"].tolist()
    names = [
        f"{view.name}:{field.name}"
        for view in store.list_feature_views()
        for field in view.features
    ]

    def read(asked: list[str]) -> None:
        answer = store.get_online_features(
            names, [{"user_id": user} for user in asked], full_feature_names=True
        )
        assert len(answer.proto.results) == len(names) + 1

    measure(read, users, int(repeats))


if __name__ == "__main__":
    main()
