"""Loading an engine at the command line, with a spinner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.markup import escape

from foredraft import library
from foredraft.backends.rope import settle
from foredraft.cli.head_files import check_no_head
from foredraft.cli.interrupt import HeldCtrlC
from foredraft.cli.model_summary import check_generates, positions_in, summary_of
from foredraft.cli.paths import cache_dir, locate, models_dir, other_programs
from foredraft.config import Speculation
from foredraft.engine.images import BLIND_HINT
from foredraft.errors import ModelError, ModelFormatError, RequestError
from foredraft.library.safetensors_file import SafetensorsSummary
from foredraft.registry import backend_for, check_speculation

if TYPE_CHECKING:
    from foredraft.cli.model_summary import Summary
    from foredraft.engine.engine import Engine
    from foredraft.engine.options import EngineOptions


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
    """Raises what `library.check_drafts` does."""
    library.check_drafts(speculation, models_dir(), other_programs())


def check_chats(path: Path, options: dict[str, Any], *, images: bool) -> None:
    """Raises RequestError for a model that cannot answer chat messages, or not see its `images`, before it is
    loaded. What is wrong with the options comes first: without them one might take another model. Other
    faults of the file are reported by loading it.
    """
    try:
        summary = summary_of(path, options.get("llama_library"))
    except ModelError:
        return
    if not summary.tensors:
        return
    if not summary.has_chat_template or images:
        _check_options(path, summary, options, images=images)
    if not summary.has_chat_template:
        raise RequestError(
            f"{path.name} has no chat template: it continues texts and was not made to answer messages.",
            hint='Have it continue a text: foredraft run -m MODEL --raw "Once upon a time"',
        )


def _check_options(path: Path, summary: Summary, options: dict[str, Any], *, images: bool) -> None:
    """Raises what loading a model with these options would, as far as headers say it."""
    from foredraft.backends.llamacpp.loading import check_files
    from foredraft.backends.llamacpp.vision_file import mmproj_of
    from foredraft.engine.options import model_options

    wanted = model_options(cast("EngineOptions", options)).model
    sees = True
    if not isinstance(summary, SafetensorsSummary):
        check_files(path, wanted)
        sees = mmproj_of(path, wanted) is not None
    settle(path.name, positions_in(summary), wanted.rope, wanted.context_length)
    if images and not sees:
        raise RequestError("This model does not see images.", hint=BLIND_HINT)


def load_engine(
    model: str | Path | None,
    speculation: Speculation,
    options: dict[str, Any],
    console: Console,
    *,
    chats: bool = False,
    images: bool = False,
    notes: bool = True,
) -> Engine:
    """`Engine.load` with a spinner on `console` (standard error); see `load_engines`. With `chats` the model
    must have a usable chat template, with `images` it must see. `notes`: print the engine's.
    """
    check_speculation(speculation)
    check_drafts(speculation)
    path = find_model(model)
    if chats:
        check_no_head(path, options.get("llama_library"))
        check_generates(path, options.get("llama_library"))
        check_chats(path, options, images=images)
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
    path = find_model(model)
    check_no_head(path, options.get("llama_library"))
    check_generates(path, options.get("llama_library"))
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
