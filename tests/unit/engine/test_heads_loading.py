"""Which head drafts for a model: found, named, missing or unusable, before and after the model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft import Engine, registry
from foredraft.cli.loading import check_drafts
from foredraft.config import ModelOptions, parse_speculation
from foredraft.engine import heads, loading
from foredraft.errors import CapacityError, ModelFormatError, SpeculationStringError
from foredraft.library import heads as library_heads
from foredraft.library.catalogue import heads_dir, list_models, models_dir
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.heads import resolve_head
from foredraft.protocols import Head, Model
from foredraft.testing import FakeModel, markov_logits

HEAD = b"HEAD layer:1 next"


class FakeBackend:
    """Files that begin with "GGUF" are models, "GGUF own" one with layers of its own; "HEAD a b" a head that
    reads a and b.
    """

    name = "fake"

    def __init__(self) -> None:
        self.loaded: list[ModelOptions] = []
        self.read: list[ModelOptions | None] = []
        self.watches = True
        self.kind: type[TakesFiles] = TakesFiles

    def accepts(self, path: Path) -> bool:
        return path.read_bytes().startswith(b"GGUF")

    def features_for(
        self, path: Path, head: Path | None, options: ModelOptions | None = None
    ) -> tuple[str, ...]:
        self.read.append(options)
        if head is None:
            return ("next",) if path.read_bytes() == b"GGUF own" else ()
        first, *needs = head.read_text().split()
        if first != "HEAD":
            raise ModelFormatError(f"{head.name} is no head.")
        return tuple(needs)

    def weights_hash(self, path: Path, options: ModelOptions | None = None) -> str:
        return hashlib.sha256(path.read_bytes().partition(b" in ")[0]).hexdigest()

    def load(self, path: Path, options: ModelOptions) -> Model:
        self.loaded.append(options)
        if options.watch and not self.watches:
            raise CapacityError("There is no room for that.")
        model = self.kind(258, logits=markov_logits(258, order=1), features=options.watch)
        model.info = replace(model.info, path=str(path), name=path.stem, file_hash=fingerprint_of(path))
        model.with_capabilities(sequences=max(4, options.sequences))
        return model


class TakesFiles(FakeModel):
    """It notes what heads it was asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asked: list[Path | None] = []

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        self.asked.append(path)
        return super().load_head(path, sequences=sequences)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    made = FakeBackend()
    for module in (heads, loading):
        monkeypatch.setattr(module, "backend_for", lambda path: made)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, content: bytes = b"GGUF plain") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


def head_of(path: Path, folder: Path) -> Path | None:
    return library_heads.head_of(path, folder, FakeBackend().weights_hash)


def load(path: Path, cache: Path, *settings: str) -> list[Engine]:
    return Engine.load_together(path, settings, cache_dir=cache, remember=False)


def drafters(engine: Engine) -> list[str]:
    return engine.setup.drafters.names


Place = Callable[..., Path]


def test_without_a_head_nothing_is_watched(backend: FakeBackend, place: Place, own_cache: Path) -> None:
    path = place("m.gguf")
    for settings in ("off", "auto", "suffix", "auto;recycle"):
        [engine] = load(path, own_cache, settings)
        assert backend.loaded[-1].watch == ()
        assert "heads" not in drafters(engine)
        assert engine.notes == ()
        assert engine.setup.head is None


class Shares(TakesFiles):
    """Its weights can be used by another; `full`: there is no memory for that."""

    full = False

    def unwatched(self, sequences: int) -> Model:
        if self.full:
            raise CapacityError("There is no room for that.")
        other = FakeModel(258, logits=markov_logits(258, order=1), sequences=sequences)
        other.info = self.info
        return other


@pytest.mark.parametrize("full", [False, True])
def test_engines_without_a_head_do_not_watch(
    backend: FakeBackend, place: Place, own_cache: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place("m.gguf", b"GGUF own")
    for kind in (TakesFiles, Shares):
        monkeypatch.setattr(backend, "kind", kind)
        monkeypatch.setattr(Shares, "full", full)
        engines = load(path, own_cache, "off", "auto", "suffix", "heads")
        watching = [bool(engine.model.capabilities.features) for engine in engines]
        shared = kind is TakesFiles or full
        assert watching == ([True] * 4 if shared else [False, True, False, True])
        assert [engine.model.capabilities.sequences for engine in engines] == [1] * 4
        said = [engine.generate([1, 2, 3], max_tokens=20, ignore_eos=True) for engine in engines]
        assert len({answer.tokens for answer in said}) == 1
        assert all(not engine.notes for engine in engines)
        models = {id(engine.model): engine.model for engine in engines}.values()
        for engine in engines:
            engine.close()
        assert all(getattr(model, "_shared").open == set() for model in models)  # noqa: B009


def test_auto_uses_own_layers_unasked(backend: FakeBackend, place: Place, own_cache: Path) -> None:
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, "auto")
    assert backend.loaded[-1].watch == ("next",)
    assert backend.read
    assert all(options is not None and options.cache_dir == own_cache for options in backend.read)
    assert engine.notes == ()
    assert drafters(engine)[-1] == "heads"
    assert engine.setup.head == "its own layers"
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, "heads")
    answer = engine.generate([1, 2, 3], max_tokens=60, ignore_eos=True)
    assert answer.speculation.drafters["heads"].accepted > 30


@pytest.mark.parametrize("settings", ["off", "suffix"])
def test_settings_without_heads_watch_nothing(
    backend: FakeBackend, place: Place, own_cache: Path, settings: str
) -> None:
    load(place("m.gguf", b"GGUF own"), own_cache, settings)
    assert backend.loaded[-1].watch == ()


@pytest.mark.parametrize(
    "name",
    [
        "big-Q4_0-eagle3.gguf",
        "big-Q4_0.eagle3.gguf",
        "big-Q4_0.head.gguf",
        "big-EAGLE3.gguf",
        "big-DFlash.gguf",
        "big-Q4_0.dspark.gguf",
        "big.head.gguf",
    ],
)
def test_a_file_beside_the_model_belongs_to_it(
    backend: FakeBackend, place: Place, own_cache: Path, name: str
) -> None:
    path, head = place("big-Q4_0.gguf", b"GGUF own"), place(name, HEAD)
    [engine] = load(path, own_cache, "auto")
    assert backend.loaded[-1].watch == ("layer:1", "next")
    assert engine.setup.head == str(head)
    assert isinstance(engine.model, TakesFiles)
    assert engine.model.asked == [head]


@pytest.mark.parametrize(
    "name", ["bigger-eagle3.gguf", "big-eagle3-Q4_0.gguf", "big.gguf", "big-Q8_0.head.gguf"]
)
def test_other_files_do_not_belong_to_it(place: Place, own_cache: Path, name: str) -> None:
    place(name, HEAD)
    assert head_of(place("big-Q4_0.gguf"), models_dir(own_cache)) is None


def test_a_model_that_is_named_by_its_quantisation_has_no_other_models_head(
    place: Place, own_cache: Path
) -> None:
    for name in ("-eagle3.gguf", ".eagle3.gguf", ".head.gguf"):
        place(name, HEAD)
    path = place("Q4_0.gguf")
    assert head_of(path, models_dir(own_cache)) is None
    own = place("Q4_0.head.gguf", HEAD)
    assert head_of(path, models_dir(own_cache)) == own


def test_a_head_is_found_by_the_models_hash(backend: FakeBackend, place: Place, own_cache: Path) -> None:
    path = place("m.gguf")
    kept = heads_dir(models_dir(own_cache))
    kept.mkdir(parents=True)
    (kept / "0123456789abcdef.gguf").write_bytes(HEAD)
    assert head_of(path, models_dir(own_cache)) is None
    head = kept / f"{fingerprint_of(path)[:16]}-mine.gguf"
    head.write_bytes(HEAD)
    [engine] = load(path, own_cache, "auto")
    assert engine.setup.head == str(head)
    assert head_of(place("other.gguf", b"GGUF other"), models_dir(own_cache)) is None


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of heads that come with Foredraft."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    monkeypatch.setattr(library_heads, "PACKAGED", folder)
    return folder


def test_a_packaged_head_is_the_last_to_be_found(
    backend: FakeBackend, place: Place, own_cache: Path, packaged: Path
) -> None:
    path, other = place("m-Q4_0.gguf"), place("other.gguf", b"GGUF other")
    head = place(f"packaged/{fingerprint_of(path)[:16]}-m.gguf", HEAD)
    [engine] = load(path, own_cache, "auto")
    assert engine.setup.head == str(head)
    assert head_of(other, models_dir(own_cache)) is None
    kept = heads_dir(models_dir(own_cache))
    kept.mkdir(parents=True)
    own = kept / head.name
    own.write_bytes(HEAD)
    assert head_of(path, models_dir(own_cache)) == own
    beside = place("m-eagle3.gguf", HEAD)
    assert head_of(path, models_dir(own_cache)) == beside
    assert resolve_head(head.stem, models_dir(own_cache)) == own
    own.unlink()
    assert resolve_head(head.stem, models_dir(own_cache)) == head


@pytest.mark.parametrize("where", ["packaged", "own"])
def test_a_head_named_by_the_weights_hash_is_for_all_quantisations(
    backend: FakeBackend, place: Place, own_cache: Path, packaged: Path, where: str
) -> None:
    four, eight = place("a.gguf", b"GGUF plain in Q4_0"), place("b.gguf", b"GGUF plain in Q8_0")
    folder = packaged if where == "packaged" else heads_dir(models_dir(own_cache))
    folder.mkdir(parents=True, exist_ok=True)
    head = folder / f"{backend.weights_hash(four)[:16]}.gguf"
    head.write_bytes(HEAD)
    assert head_of(four, models_dir(own_cache)) == head_of(eight, models_dir(own_cache)) == head
    assert head_of(place("c.gguf", b"GGUF other in Q4_0"), models_dir(own_cache)) is None
    exact = folder / f"{fingerprint_of(eight)[:16]}.gguf"
    exact.write_bytes(HEAD)
    assert head_of(eight, models_dir(own_cache)) == exact
    assert head_of(four, models_dir(own_cache)) == head


def test_of_weights_that_cannot_be_told_no_head_is_found(
    place: Place, own_cache: Path, packaged: Path
) -> None:
    place("packaged/0123.gguf", HEAD)
    path = place("m.gguf")

    def damaged(path: Path) -> str:
        raise ModelFormatError("damaged")

    for weights_hash in (lambda path: "", damaged):
        assert library_heads.head_of(path, models_dir(own_cache), weights_hash) is None


def test_folders_of_safetensors_belong_to_models_too(tmp_path: Path, own_cache: Path) -> None:
    for name in ("big", "big-eagle3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 9)
    folder = models_dir(own_cache)
    assert head_of(tmp_path / "big", folder) == tmp_path / "big-eagle3"
    assert head_of(tmp_path / "big" / "config.json", folder) == tmp_path / "big-eagle3"
    assert resolve_head(str(tmp_path / "big-eagle3"), folder) == tmp_path / "big-eagle3"
    assert resolve_head(str(tmp_path / "big-eagle3" / "config.json"), folder) == tmp_path / "big-eagle3"


def test_an_unusable_head_that_was_found_is_a_note(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    place("m-eagle3.gguf", b"junk")
    [engine] = load(place("m.gguf"), own_cache, "auto")
    assert backend.loaded[-1].watch == ()
    [note] = engine.notes
    assert "m-eagle3.gguf cannot be used with this model: m-eagle3.gguf is no head." in note
    assert len(engine.generate([1], max_tokens=5, ignore_eos=True).tokens) == 5
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, "auto")  # then its own layers
    assert engine.setup.head == "its own layers"
    assert len(engine.notes) == 1


def test_a_named_head_that_cannot_be_used_is_a_note(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    junk = place("junk.gguf", b"junk")
    folder = place("folder/notes.txt").parent
    for name, says in (
        (str(junk), "is no head"),
        ("nothing", "There is no head 'nothing'"),
        (str(folder), f"The folder '{folder}' is no head"),
    ):
        [engine] = load(place("m.gguf"), own_cache, f"auto;heads:model={name}")
        [note] = engine.notes
        assert "drafter heads" in note
        assert says in note
        assert "heads" not in drafters(engine)
    [engine] = load(place("m.gguf"), own_cache, "heads")
    assert "no layers for multi-token prediction" in engine.notes[0]
    assert engine.setup.reason == "none of the drafters asked for can be used"


def test_a_named_head_takes_the_place_of_the_one_that_was_found(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    place("m-eagle3.gguf", HEAD)
    mine = place("mine.gguf", b"HEAD layer:5")
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, f"auto;heads:model={mine},max=4")
    assert backend.loaded[-1].watch == ("layer:5",)
    assert engine.setup.head == str(mine)
    assert drafters(engine).count("heads") == 1


def test_a_head_that_is_switched_off_is_neither_loaded_nor_read_for(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    place("m-eagle3.gguf", HEAD)
    path = place("m.gguf", b"GGUF own")
    [engine] = load(path, own_cache, "auto;heads:model=off")
    assert backend.loaded[-1].watch == ()
    assert "heads" not in drafters(engine)
    assert "suffix" in drafters(engine)
    assert engine.notes == ()
    check_drafts(parse_speculation("auto;heads:model=off"))
    [engine] = load(path, own_cache, "heads:model=off")
    assert engine.setup.reason == "none of the drafters asked for can be used"


def test_engines_of_one_model_watch_what_any_of_them_needs(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    head = place("h.gguf", HEAD)
    path = place("m.gguf", b"GGUF own")
    engines = load(path, own_cache, "off", "auto", f"heads:model={head}", "suffix")
    assert backend.loaded[-1].watch == ("next", "layer:1")
    assert [engine.setup.head for engine in engines] == [None, "its own layers", str(head), None]
    texts = {engine.generate([1, 2, 3], max_tokens=40, ignore_eos=True).tokens for engine in engines}
    assert len(texts) == 1


def test_a_model_loaded_without_says_that_it_must_be_loaded_again(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    head = place("h.gguf", HEAD)
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, "off")
    for settings in ("auto", "heads", f"heads:model={head}"):
        engine.set_speculation(settings)
        [note] = engine.notes
        assert "was loaded without the hidden states that its head reads: load it again" in note
        assert "heads" not in drafters(engine)
    [engine] = load(place("m.gguf", b"GGUF own"), own_cache, "auto")
    engine.set_speculation("off")
    engine.set_speculation("heads:max=3")
    assert engine.notes == ()
    assert engine.setup.head == "its own layers"


def test_a_model_that_cannot_be_loaded_with_its_head_is_loaded_without(
    backend: FakeBackend, place: Place, own_cache: Path
) -> None:
    backend.watches = False
    path, head = place("m.gguf", b"GGUF own"), place("mine.gguf", HEAD)
    for settings in ("auto", "heads", f"auto;heads:model={head}"):
        [engine] = load(path, own_cache, settings)
        assert [bool(options.watch) for options in backend.loaded[-2:]] == [True, False]
        why = "the model cannot be loaded with what a head reads: There is no room for that."
        [note] = engine.notes
        assert note.startswith("drafter heads")
        assert note.endswith(f"cannot be used: {why}")
        assert "heads" not in drafters(engine)
        assert len(engine.generate([1], max_tokens=5, ignore_eos=True).tokens) == 5
    engine.set_speculation("auto")  # it is the same model still
    assert [why in note for note in engine.notes] == [True]
    [engine] = load(path, own_cache, "suffix")
    assert engine.notes == ()


def test_a_model_that_cannot_be_loaded_at_all_raises_its_own_error(
    backend: FakeBackend, place: Place, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, options: ModelOptions) -> Model:
        raise ModelFormatError("with a head" if options.watch else "damaged")

    monkeypatch.setattr(backend, "load", fail)
    with pytest.raises(ModelFormatError, match=r"^damaged"):
        load(place("m.gguf", b"GGUF own"), own_cache, "auto")


def test_bad_options_are_errors(backend: FakeBackend, place: Place, own_cache: Path) -> None:
    with pytest.raises(SpeculationStringError, match="max=0"):
        load(place("m.gguf", b"GGUF own"), own_cache, "heads:max=0")


def test_heads_are_no_models(own_cache: Path) -> None:
    folder = models_dir(own_cache)
    for name in (
        "a/b/m-Q4_0.gguf",
        "a/b/m-eagle3.gguf",
        "m.head.gguf",
        "a/m-EAGLE3-Q8_0.gguf",
        "heads/0123.gguf",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"GGUF")
    listed = [model for model in list_models(folder) if model.source != "bundled"]
    assert [model.path.name for model in listed] == ["m-Q4_0.gguf"]
    assert resolve_head("0123", folder) == folder / "heads" / "0123.gguf"
    assert resolve_head("M-Eagle3-q8_0.gguf", folder) == folder / "a" / "m-EAGLE3-Q8_0.gguf"


def test_the_drafter_is_registered() -> None:
    assert "heads" in registry.drafter_names()
