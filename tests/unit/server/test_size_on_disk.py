"""What a model will take, as a server estimates it from its files."""

from __future__ import annotations

from pathlib import Path

from foredraft.config import OtherPrograms
from foredraft.server.run import size_on_disk
from foredraft.server.settings import ModelSettings, ServerSettings
from other_programs import put
from safetensors_factory import one_file, write


def test_a_vision_file_beside_a_folder_of_safetensors_is_not_its(tmp_path: Path) -> None:
    folder = write(tmp_path / "tensors", one_file())
    model = ModelSettings(path=str(folder))
    measure = size_on_disk(ServerSettings(models={"m": model}), OtherPrograms())
    alone = measure(model)
    assert alone == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    put(tmp_path / "mmproj-F16.gguf", b"eyes" * 1000)
    assert measure(model) == alone


def test_a_vision_file_beside_a_gguf_is_its(tmp_path: Path) -> None:
    model = ModelSettings(path=str(put(tmp_path / "m.gguf", b"m" * 100)))
    put(tmp_path / "mmproj-F16.gguf", b"eyes" * 1000)
    assert size_on_disk(ServerSettings(models={"m": model}), OtherPrograms())(model) == 4100
