"""What `foredraft models inspect` shows of a LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.cli.units import size_text
from foredraft.library.adapter_files import PEFT_CONFIG, files_of, is_peft
from foredraft.library.fingerprint import fingerprint
from foredraft.library.heads import DIGITS
from foredraft.library.repository import read_json
from foredraft.library.safetensors_file import SafetensorsSummary

if TYPE_CHECKING:
    from foredraft.cli.model_summary import Summary


def peft_rows(folder: Path) -> dict[str, str] | None:
    """The rows of an adapter in PEFT's format; None of another folder. Raises ModelError."""
    if not is_peft(folder):
        return None
    files, config = files_of(folder), read_json(folder / PEFT_CONFIG)
    targets = config.get("target_modules")
    return {
        "adapter": str(config.get("peft_type", "unknown")),
        "for": str(config.get("base_model_name_or_path") or ""),
        "rank": str(config.get("r", "")),
        "alpha": str(config.get("lora_alpha", "")),
        "targets": ", ".join(map(str, targets)) if isinstance(targets, list) else str(targets or ""),
        "size": size_text(sum(file.stat().st_size for file in files)),
        "format": "PEFT",
        "hash": fingerprint(files)[:DIGITS],
    }


def gguf_rows(summary: Summary) -> dict[str, str] | None:
    """The rows of an adapter in a GGUF file; None of a model. Raises ModelError."""
    if isinstance(summary, SafetensorsSummary):
        return None
    from foredraft.backends.llamacpp.adapter_file import is_adapter, read_adapter

    if not is_adapter(summary):
        return None
    adapter = read_adapter(summary.path)
    said: dict[str, Any] = dict(summary.metadata)
    base = said.get("general.base_model.0.name") or f"models of the architecture {summary.architecture}"
    return {
        "adapter": "LoRA",
        "name": summary.name,
        "for": str(base),
        "rank": str(adapter.rank),
        "alpha": f"{adapter.alpha:g}" if adapter.alpha else "",
        "matrices": f"{len(adapter.pairs):,} of the model's",
        "size": size_text(summary.size_bytes),
        "type": summary.file_type,
        "format": f"GGUF version {summary.version}",
        "hash": fingerprint([summary.path])[:DIGITS],
    }
