"""A checkpoint of the default encoder with random weights, in the FOLDER named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from encoders.checkpoint import write_checkpoint
from encoders.config import EncoderConfig
from encoders.model import UserEncoder


def main() -> None:
    """Write it."""
    torch.manual_seed(1)
    encoder = UserEncoder(EncoderConfig(dimensions=64, max_length=128))
    encoder.eval()
    write_checkpoint(Path(sys.argv[1]), encoder, {"held_out": {}})
    print(json.dumps({"parameters": sum(p.numel() for p in encoder.parameters())}))


if __name__ == "__main__":
    main()
