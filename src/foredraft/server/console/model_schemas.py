"""Models: configured, on disk, on the Hub; their settings and their drafts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from foredraft.embedding import ModelKind
from foredraft.server.console.shapes import Change, Numbered, Reply

State = Literal["unloaded", "loading", "loaded", "failed"]
Fit = Literal["fits", "translation", "no"]


class ConfiguredModel(Reply):
    """A model that clients can use. `kind`: what it is for, None if its files cannot be read. `adapters`:
    their names, which clients ask for as models. `in_file`: it
    is in the settings file, not only on the command line. `size_bytes`: memory when loaded, else an estimate;
    `context_length` likewise. `error`: why loading failed last time. `outdated`: its settings have changed;
    it is loaded again when it is idle. `exact`: None unless loaded. `last_used`: Unix time of the end of its
    last request, None unless it is loaded and idle.
    """

    name: str
    kind: ModelKind | None
    path: str | None = Field(description="For the admin.")
    aliases: list[str]
    adapters: list[str]
    state: State
    error: str | None
    default: bool
    pinned: bool
    in_file: bool
    outdated: bool
    size_bytes: int
    speculate: str
    draft_model: str | None
    head: str | None
    architecture: str | None
    quantization: str | None
    parameters: int | None
    context_length: int | None
    trained_context: int | None
    device: str | None
    memory_bytes: dict[str, int]
    exact: bool | None
    exact_reason: str | None
    running: int
    waiting: int
    tokens_generated: int
    last_used: float | None


class StoredModel(Reply):
    """A model on this machine. `source`: "foredraft" for the models folder, else the program it belongs to.
    `removable`: it can be deleted here. `served_as`: names of configured models that use it,
    `drafts_for`: of those that it drafts for.
    """

    name: str
    path: str
    size_bytes: int
    quantization: str
    source: str
    complete: bool
    removable: bool
    packaged: bool
    served_as: list[str]
    drafts_for: list[str]


class Models(Numbered):
    """All models. `stored`, `folder` and `file_error` are for the admin: others know nothing of this
    machine's files. `budget_bytes`: for all loaded models together, None without a budget. `used_bytes`:
    their weights. `memory_bytes`: of the machine. `file_error`: why the settings file cannot be used as it is
    now.
    """

    configured: list[ConfiguredModel]
    stored: list[StoredModel]
    budget_bytes: int | None
    used_bytes: int
    memory_bytes: int | None
    folder: str | None
    file_error: str | None


class ModelSettingsReply(Reply):
    """The settings of a model, by the names of `ModelSettings`; `sampling` is an object with all its names,
    null where the API's own default counts. `version` identifies the state of the file that the values were
    read from; send it back with a change.
    """

    name: str
    version: str
    in_file: bool
    values: dict[str, Any]
    defaults: dict[str, Any]
    changed: list[str] = Field(description="Names that differ from the default; of sampling `sampling.NAME`.")
    choices: dict[str, list[str]] = Field(description="Valid values, where they are a list.")
    recommended: dict[str, float] = Field(description="Sampling values that the model's makers recommend.")


class ModelSettingsChange(Change):
    """New values for some settings of a model; null takes the default. Others stay."""

    version: str
    values: dict[str, Any]


class NewModel(Change):
    """A model to serve: `path` is a file, or the name of a model on this machine. `name` defaults to the
    model's own.
    """

    version: str | None = None
    path: str
    name: str | None = None
    values: dict[str, Any] = Field(default_factory=dict)


class DefaultModel(Change):
    """The model for requests that name none; null is the first."""

    version: str
    name: str | None


class DraftCandidate(Reply):
    """A model or a head that could draft for a model. `value`: what to set `draft_model` to; None for a head,
    which is used without being set. `fits`: "translation" between two tokenizers costs some acceptance.
    `why`: one sentence; `code` is one of same_vocabulary, translated, vocabulary, size, memory, itself,
    incomplete, unreadable, recurrent, head; `also` are codes of what else is to be said.
    """

    name: str
    value: str | None
    kind: Literal["model", "head"]
    path: str | None = Field(description="For the admin.")
    size_bytes: int
    share: float | None = Field(description="Its parameters ÷ those of the model.")
    fits: Fit
    code: str
    why: str
    also: list[str]
    used: bool


class DraftCandidates(Reply):
    """The best first."""

    candidates: list[DraftCandidate]


class HubVariant(Reply):
    """A quantisation of a repository."""

    name: str
    size_bytes: int


class HubModel(Reply):
    """A repository on the Hub. `variants`: the one that is pulled by default first."""

    repository: str
    downloads: int
    gated: bool
    variants: list[HubVariant]


class HubModels(Reply):
    """The most downloaded first."""

    models: list[HubModel]


class NewPull(Change):
    """`model`: OWNER/NAME[:QUANT], or its address on the Hub. `serve`: add it to the models afterwards."""

    model: str
    serve: bool = True


class Pull(Reply):
    """A download. `total_bytes`: None until it is known. `served_as`: the model's name when it is served."""

    id: str
    model: str
    file: str | None
    state: Literal["running", "done", "failed", "cancelled"]
    done_bytes: int
    total_bytes: int | None
    bytes_per_s: float | None
    error: str | None
    path: str | None
    served_as: str | None


class Pulls(Numbered):
    """The newest first."""

    pulls: list[Pull]
