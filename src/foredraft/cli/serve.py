"""`foredraft serve`: the HTTP server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from foredraft import installation
from foredraft.backends.llamacpp import binding
from foredraft.cache_folder import FORMER_NAME, NAME
from foredraft.cli.completion import complete_models
from foredraft.cli.help import COMMON, OTHER, OUTPUT, SERVING, GroupedCommand, option
from foredraft.cli.interrupt import terminable
from foredraft.cli.loading import check_drafts, find_model
from foredraft.cli.options import (
    model_options,
    remember_option,
    speculation_options,
    take_model_options,
    take_remember,
    take_speculation,
)
from foredraft.cli.paths import cache_dir, other_programs
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted
from foredraft.cli.values import Number, Whole
from foredraft.errors import ConfigError, MissingDependencyError, quoted
from foredraft.library import stem_of
from foredraft.registry import check_speculation

if TYPE_CHECKING:
    from foredraft.bench.recorder import TraceRecorder
    from foredraft.server.settings import ModelSettings, ServerSettings
    from foredraft.server.settings_file import SettingsWatcher

DEFAULT_NAME = "default"
KEPT_GB = 4.0
"""Disk space for conversations' KV caches, in a folder named with --cache-dir."""


@click.command(
    cls=GroupedCommand,
    examples=(
        "foredraft serve",
        "foredraft serve -m qwen.gguf -m OWNER/NAME:Q4_0 --port 8080",
        "foredraft serve --config foredraft.toml",
    ),
)
@click.argument("models", nargs=-1, metavar="[MODEL]…", shell_complete=complete_models)
@option(
    "--model",
    "-m",
    "named",
    group=COMMON,
    metavar="MODEL",
    multiple=True,
    shell_complete=complete_models,
    show_default="the model that came with Foredraft",
    help="A GGUF file, a folder of safetensors, or the name of a model. Repeatable.",
)
@option("--port", group=COMMON, type=Whole(0, 65535), default=None, show_default="8080", help="Port.")
@option("--host", group=COMMON, default=None, show_default="127.0.0.1", help="Address to listen on.")
@option(
    "--config",
    "settings_file",
    group=COMMON,
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    show_default="foredraft.toml, where there is one",
    help="A settings file with models, keys and limits.",
)
@option(
    "--sequences",
    "-np",
    group=SERVING,
    type=Whole(1),
    default=4,
    show_default=True,
    help="Maximum requests answered at the same time, for each MODEL.",
)
@option("--allow-public", group=SERVING, is_flag=True, help="Allow access from other machines without a key.")
@option(
    "--log-format",
    group=OUTPUT,
    type=click.Choice(["text", "json", "off"]),
    default=None,
    show_default="text",
    help="Format of the request log on standard error: one line per request, or none.",
)
@option(
    "--quiet",
    "-q",
    "log_format",
    group=OUTPUT,
    flag_value="off",
    help="No request log; the same as --log-format off.",
)
@option(
    "--record",
    group=OUTPUT,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Add every answer to a trace file for 'foredraft bench --replay'. It contains all users' texts.",
)
@option(
    "--cache-dir",
    "kept_in",
    group=OTHER,
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    show_default="$FOREDRAFT_CACHE, or the system's cache folder",
    help="Folder for stored data. If given, the KV cache of conversations is also stored there and "
    f"survives a restart: up to {KEPT_GB:g} GB, unless --prefix-cache-gb or the settings file differ.",
)
@option(
    "--prefix-cache-gb",
    group=OTHER,
    type=Number(0),
    default=None,
    metavar="GB",
    show_default="0, none, without --cache-dir",
    help="Disk space for the KV cache of conversations, so that they continue without prefill.",
)
@speculation_options
@model_options
@remember_option
def serve(models: tuple[str, ...], **options: Any) -> int:
    """Serve models over OpenAI's and Anthropic's APIs.

    MODELs may also be given without -m. The first is loaded at once and answers requests that name no model;
    the others are loaded on first use. The settings file configures its own models; SPEC and the options of
    loading apply to MODELs.
    """
    try:
        from foredraft.server.auth import check_bind
        from foredraft.server.run import run_server
        from foredraft.server.settings import ServerSettings
    except ImportError as error:
        raise MissingDependencyError(
            f"The server needs the package {quoted(error.name)}.",
            hint=f"Install it with: {installation.add_extra('server')}",
        ) from None
    allow_public, record = options.pop("allow_public"), options.pop("record")
    overlay = _overlay((*options.pop("named"), *models), options)
    watcher = _watcher(options.pop("settings_file"))
    settings = overlay(watcher.current if watcher else ServerSettings())
    binding.choose(settings.llama_library)  # also for a model that is loaded at the first request only
    for model in settings.models.values():
        check_drafts(model.speculation())
    check_bind(settings.host, settings.keys, allow_public=allow_public)
    _log(settings.log_format)
    console = stderr_console()
    spinner = console.status("Loading the model…") if console.is_terminal else nullcontext()
    with terminable(), _recording(record, console) as recorder, spinner as status:

        def listening(model: str, url: str) -> None:
            if status is not None:
                status.stop()
            names = ", ".join(settings.models)  # the names that clients use
            for line in (f"Serving {names}: {model} on {url}/v1", f"Status page: {_openable(url)}/"):
                _say(console, escape(line))

        def reload() -> ServerSettings | ConfigError | None:
            found = watcher.poll() if watcher else None
            return overlay(found) if isinstance(found, ServerSettings) else found

        run_server(
            settings,
            allow_public=allow_public,
            reload=reload,
            listening=listening,
            loaded=recorder.watch if recorder else None,
            other_programs=other_programs(),
            environment=dict(os.environ),
        )
    return 0


def _say(console: Console, line: str) -> None:
    with suppress(OSError):  # standard error may be closed; see `_Lines`
        console.print(line, highlight=False, soft_wrap=True)


def _openable(url: str) -> str:
    """The URL for a browser on this machine: 0.0.0.0 and :: are not addresses to open."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


@contextmanager
def _recording(path: Path | None, console: Console) -> Iterator[TraceRecorder | None]:
    """Open a recorder for this file, with a warning. Raises ConfigError."""
    if path is None:
        yield None
        return
    from foredraft.bench.recorder import TraceRecorder
    from foredraft.bench.trace_file import LARGEST_FILE

    with TraceRecorder(path) as recorder:
        _say(
            console,
            f"[yellow]Recording: the texts of all requests, of all users, are stored in "
            f"{escape(str(path))}, up to {LARGEST_FILE // 10**6} MB.[/]",
        )
        try:
            yield recorder
        finally:  # a server usually ends by Ctrl-C
            recorder.close()
            if recorder.written or recorder.lost:
                lost = f"; {counted(recorder.lost, 'answer')} not recorded" if recorder.lost else ""
                answers = counted(recorder.written, "answer")
                _say(console, f"[dim]Recorded {answers} in {escape(str(path))}{lost}[/]")


def _watcher(chosen: Path | None) -> SettingsWatcher | None:
    """A watcher of the settings file, if there is one. Raises ConfigError."""
    from foredraft.server.settings_file import FILE_NAME, SettingsWatcher

    file = chosen or Path(FILE_NAME)
    former = file.with_name(FILE_NAME.replace(NAME, FORMER_NAME))
    if not chosen and not file.exists() and former.exists():  # it may contain the keys
        raise ConfigError(
            f"There is a {former.name} here and no {FILE_NAME}: the project has a new name.",
            hint=f"Rename the file: mv {former.name} {FILE_NAME}",
        )
    return SettingsWatcher(file) if chosen or file.exists() else None


def _overlay(models: tuple[str, ...], options: dict[str, Any]) -> Callable[[ServerSettings], ServerSettings]:
    """The changes that the command line makes to the settings file. Raises ConfigError, ModelError."""
    from foredraft.server.settings import ModelSettings

    speculation = take_speculation(options)
    check_speculation(speculation)
    remember = take_remember(options)["remember"]
    loading = {**take_model_options(options), "sequences": options.pop("sequences")}
    llama_library = loading.pop("llama_library")
    named = {
        name: ModelSettings(path=str(path), aliases=typed, speculate=str(speculation), **loading)
        for name, (path, typed) in _named(models).items()
    }
    names = ("host", "port", "log_format", "prefix_cache_gb")
    flags = {name: value for name in names if (value := options.pop(name)) is not None}
    kept_in = options.pop("kept_in")

    def overlay(settings: ServerSettings) -> ServerSettings:
        own = {**_without_names_of(settings, named), **settings.models}
        if not own:
            path = find_model(None)
            own = {DEFAULT_NAME: ModelSettings(path=str(path), speculate=str(speculation), **loading)}
        remembers = settings.remember and remember
        kept = KEPT_GB if kept_in and remembers and not settings.prefix_cache_gb else settings.prefix_cache_gb
        return replace(
            settings,
            **{
                "models": own,
                "llama_library": llama_library or settings.llama_library,
                "cache_dir": kept_in or settings.cache_dir or cache_dir(),
                "remember": remembers,
                "prefix_cache_gb": kept,
                **flags,
            },
        )

    return overlay


def _named(models: tuple[str, ...]) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Map the names that clients use to (file, name as typed); clients may use the typed name, too.

    Raises ModelNotFoundError, ConfigError.
    """
    from foredraft.server.checks import model_name

    named: dict[str, tuple[Path, tuple[str, ...]]] = {}
    for model in models:
        path = find_model(model)
        name = "-".join(stem_of(path).split())  # names in the API have no spaces
        if name in named:
            raise ConfigError(f"Two models have the name {name}.", hint="Rename one of the files.")
        typed: tuple[str, ...] = ()
        with suppress(ConfigError):  # a path with spaces is not a valid name
            model_name("model", model)
            typed = (model,) if model != name else ()
        named[name] = (path, typed)
    taken = {name for name, (_, typed) in named.items()}
    return {name: (path, tuple({*typed} - taken)) for name, (path, typed) in named.items()}


def _without_names_of(settings: ServerSettings, named: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
    """The command line's models, without the names that the settings file uses."""
    taken = {*settings.models, *(alias for model in settings.models.values() for alias in model.aliases)}
    return {
        name: replace(model, aliases=tuple(alias for alias in model.aliases if alias not in taken))
        for name, model in named.items()
    }


class _Lines(logging.Handler):
    """Writes to standard error. If it is closed or its disk is full, requests are still answered."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            click.echo(self.format(record), err=True)


def _log(log_format: str) -> None:
    """Log requests, changes of models and settings, and faults to standard error."""
    from foredraft.server.request_log import JsonFormatter, TextFormatter

    lines = _Lines()
    lines.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name, level in (
        ("foredraft.requests", logging.CRITICAL if log_format == "off" else logging.INFO),
        ("foredraft.server", logging.WARNING if log_format == "off" else logging.INFO),
        ("uvicorn", logging.WARNING),
    ):
        log = logging.getLogger(name)
        log.propagate = False
        log.setLevel(level)
        log.handlers = [lines]  # replaces the handlers of an earlier command in this process
