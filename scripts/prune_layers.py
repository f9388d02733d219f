"""A smaller model out of a larger one: every k-th layer of a safetensors folder, as a folder of its own.

    python scripts/prune_layers.py SOURCE TARGET --every 3

The copy is not trained, so what it says is worse than its size suggests. It serves as a draft model whose
vocabulary fits and that needs no download: for measurements and tests, not for use. Kept are the layers 0,
k, 2k …, renumbered; lists in config.json with an entry for each layer are cut alike.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAYER = re.compile(r"^(?P<before>(?:.*\.)?(?:layers|h)\.)(?P<number>\d+)(?P<after>\..+)$")
"""The name of a tensor that belongs to a layer, as transformers' decoders have it."""

COUNTS = ("num_hidden_layers", "n_layer")
"""What config.json calls the number of layers."""


def kept_layers(count: int, every: int) -> list[int]:
    """Which of `count` layers stay."""
    return list(range(0, count, every))


def renamed(name: str, kept: list[int]) -> str | None:
    """What a tensor is called in the copy; None if its layer is left out."""
    match = LAYER.match(name)
    if match is None:
        return name
    number = int(match["number"])
    return f"{match['before']}{kept.index(number)}{match['after']}" if number in kept else None


def pruned_config(config: Mapping[str, Any], kept: list[int]) -> dict[str, Any]:
    """config.json of the copy."""
    count = layer_count(config)
    changed = {
        key: [value[layer] for layer in kept] if isinstance(value, list) and len(value) == count else value
        for key, value in config.items()
    }
    return changed | {key: len(kept) for key in COUNTS if key in config}


def layer_count(config: Mapping[str, Any]) -> int:
    """How many layers config.json says there are. Ends the script if it does not say so."""
    for key in COUNTS:
        if key in config:
            return int(config[key])
    raise SystemExit(f"config.json has none of {', '.join(COUNTS)}: this is no decoder that can be pruned.")


def prune(source: Path, target: Path, every: int) -> list[int]:
    """Write the copy; returns the layers that it kept. Ends the script where there is nothing to copy."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    if every < 1:
        raise SystemExit(f"--every {every}: at least 1, which keeps every layer.")
    files = sorted(source.glob("*.safetensors"))
    if not files or not (source / "config.json").is_file():
        raise SystemExit(f"{source} is not a folder with config.json and *.safetensors.")
    if target.exists() and any(target.iterdir()):
        raise SystemExit(f"{target} is not empty: name a new folder.")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    kept = kept_layers(layer_count(config), every)
    tensors: dict[str, Any] = {}
    for file in files:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                new = renamed(name, kept)
                if new is not None:
                    tensors[new] = opened.get_tensor(name)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
    text = json.dumps(pruned_config(config, kept), indent=2, ensure_ascii=False)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")
    for file in source.iterdir():  # tokenizer, chat template, tokens that end a text
        if file.is_file() and file.name != "config.json" and ".safetensors" not in file.suffixes:
            shutil.copy(file, target / file.name)
    return kept


def main() -> None:
    """Prune as the command line says."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("source", type=Path, help="a folder with config.json and *.safetensors")
    arguments.add_argument("target", type=Path, help="a folder that is empty or does not exist yet")
    arguments.add_argument("--every", type=int, default=3, help="keep one layer in EVERY")
    args = arguments.parse_args()
    kept = prune(args.source, args.target, args.every)
    print(f"{args.target}: layers {', '.join(map(str, kept))}", file=sys.stderr)


if __name__ == "__main__":
    main()
