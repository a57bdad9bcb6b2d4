"""What is fuzzed, by name; each is imported when it is asked for."""

from __future__ import annotations

import importlib

import torch

from fuzzing.runner import Reader

READERS = {
    "checkpoint": "fuzzing.checkpoints:Checkpoints",
    "config": "fuzzing.configs:Configs",
    "dataset": "fuzzing.datasets:Datasets",
    "league": "fuzzing.ledgers:Ledgers",
    "hub": "fuzzing.hubs:Hubs",
    "naive": "fuzzing.naive:Naive",
}


def make_reader(name: str) -> Reader:
    """The reader of that name, with good files to begin from."""
    torch.set_num_threads(1)  # threads do not live on in forked children
    module, _, kind = READERS[name].partition(":")
    reader: Reader = getattr(importlib.import_module(module), kind)()
    return reader
