"""Loading an engine at the command line, with a spinner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from foredraft.cli.head_files import check_no_head
from foredraft.cli.interrupt import HeldCtrlC
from foredraft.cli.model_summary import summary_of
from foredraft.cli.paths import cache_dir, locate, models_dir, other_programs
from foredraft.config import OFF, Speculation
from foredraft.errors import (
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    RequestError,
)
from foredraft.library.heads import resolve_head
from foredraft.registry import backend_for, check_speculation

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

DRAFTING = {"draft-model": "draft model", "heads": "head"}
"""Drafters that need a file, and what it is."""


class _Spinner:
    """Spinner text while a model is loaded; also confirms a Ctrl-C that has to wait."""

    def __init__(self, ctrl_c: HeldCtrlC) -> None:
        self.text = "Loading the model…"
        self._ctrl_c = ctrl_c

    def __rich__(self) -> str:
        return self.text + (" Stopping; Ctrl-C again ends at once." if self._ctrl_c.pressed else "")


def find_model(named: str | Path | None) -> Path:
    """The path of a model that an installed backend can read. Raises ModelError, MissingDependencyError."""
    path = locate(None if named is None else str(named))
    try:
        backend_for(path)
    except ModelFormatError:
        raise ModelFormatError(
            f"{path} is not a model: neither a GGUF file nor a folder of safetensors.",
            hint="'foredraft models list' shows the models you have. To give the model a text file, use "
            "'foredraft run -f FILE'.",
        ) from None
    return path


def check_drafts(speculation: Speculation) -> None:
    """Raises ModelNotFoundError if a named draft model or head does not exist.

    The engine would report it and continue without, as when a draft model fails later; but a model named on
    the command line is meant to be used.
    """
    for stage in speculation.stages:
        if stage.name in DRAFTING and (named := stage.options.get("model")):
            what = DRAFTING[stage.name]
            try:
                if stage.name == "heads":
                    if named != OFF:
                        resolve_head(named, models_dir())
                else:
                    locate(named)
            except ModelNotFoundError as error:
                raise ModelNotFoundError(
                    f"The {what} cannot be used: {error.message}",
                    hint=f"Name another, or leave it out: 'auto' also drafts without a {what}.",
                ) from None


def check_chat_template(path: Path, llama_library: Path | None) -> None:
    """Raises RequestError for a model that cannot answer chat messages, before it is loaded. Other faults of
    the file are reported by loading it.
    """
    try:
        summary = summary_of(path, llama_library)
    except ModelError:
        return
    if summary.tensors and not summary.has_chat_template:
        raise RequestError(
            f"{path.name} has no chat template: it continues texts and was not made to answer messages.",
            hint='Have it continue a text: foredraft run -m MODEL --raw "Once upon a time"',
        )


def load_engine(
    model: str | Path | None,
    speculation: Speculation,
    options: dict[str, Any],
    console: Console,
    *,
    chats: bool = False,
    notes: bool = True,
) -> Engine:
    """`Engine.load` with a spinner on `console` (standard error); see `load_engines`. With `chats` the model
    must have a usable chat template. `notes`: print the engine's.
    """
    check_speculation(speculation)
    check_drafts(speculation)
    path = find_model(model)
    if chats:
        check_no_head(path, options.get("llama_library"))
        check_chat_template(path, options.get("llama_library"))
    [engine] = load_engines(path, [speculation], options, console)
    if chats and (error := engine.model.tokenizer.template_traits.error) is not None:
        engine.close()
        raise RequestError(
            f"The chat template of {path.name} cannot be used. {error}",
            hint='Have it continue a text: foredraft run -m MODEL --raw "Once upon a time"',
        )
    for note in engine.notes if notes else ():
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=not console.is_terminal)
    return engine


def load_engines(
    model: str | Path | None,
    speculations: Sequence[Speculation],
    options: dict[str, Any],
    console: Console,
) -> list[Engine]:
    """`Engine.load_together` with a spinner on `console` (standard error).

    Ctrl-C raises KeyboardInterrupt, and nothing stays loaded. While weights are read it waits for the next
    progress report, because an exception cannot pass through native code.
    """
    from foredraft.engine.engine import Engine  # the slowest import of a command
    from foredraft.engine.loading import freeze_heap

    for speculation in speculations:
        check_speculation(speculation)
    check_no_head(find_model(model), options.get("llama_library"))
    ctrl_c = HeldCtrlC()
    spinner = _Spinner(ctrl_c)
    with ctrl_c, console.status(spinner):

        def progress(fraction: float) -> None:
            ctrl_c.raise_pressed()
            spinner.text = f"Loading the model… {fraction:.0%}"

        def notice(text: str) -> None:
            ctrl_c.release()
            spinner.text = text

        where: dict[str, Any] = {"cache_dir": cache_dir(), "other_programs": other_programs()}
        engines = Engine.load_together(
            model, speculations, progress=progress, notice=notice, **where, **options
        )
        freeze_heap()
        if ctrl_c.pressed:
            for engine in engines:
                engine.close()
    return engines
