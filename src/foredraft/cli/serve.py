"""`foredraft serve`: the HTTP server."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from foredraft import installation
from foredraft.backends.llamacpp import binding
from foredraft.cache_folder import FORMER_NAME, NAME
from foredraft.cli.browser import open_in_browser
from foredraft.cli.completion import complete_files, complete_models
from foredraft.cli.help import COMMON, LOADING, OTHER, OUTPUT, SERVING, GroupedCommand, option
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
from foredraft.cli.serve_ray import check_ray_options, serve_with_ray
from foredraft.cli.units import counted
from foredraft.cli.values import Number, Whole
from foredraft.errors import ConfigError, ForedraftError, MissingDependencyError, ModelNotFoundError, quoted
from foredraft.library import default_model, models_dir, resolve, stem_of
from foredraft.library.adapter_files import files_of, named_adapter
from foredraft.registry import check_speculation

if TYPE_CHECKING:
    from foredraft.bench.recorder import TraceRecorder
    from foredraft.server.settings import AdapterSettings, ModelSettings, ServerSettings
    from foredraft.server.taking import LiveSettings, Overlay

DEFAULT_NAME = "default"
SAMPLED = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_tokens", "reasoning_budget",
)  # fmt: skip
"""Sampling that the settings file has defaults for (`SamplingDefaults`)."""

KEPT_GB = 4.0
"""Disk space for conversations' KV caches, in a folder named with --cache-dir."""


@click.command(
    cls=GroupedCommand,
    examples=(
        "foredraft serve",
        "foredraft serve -m qwen.gguf -m OWNER/NAME:Q4_0 --port 8080",
        "foredraft serve --config foredraft.toml",
    ),
    instead={
        f"--{name.replace('_', '-')}": f"In the settings file: {name} in [models.NAME.sampling]."
        for name in SAMPLED
    },
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
@option("--ray", group=SERVING, is_flag=True, help="Replicas on Ray: on the cluster of RAY_ADDRESS, or here.")
@option(
    "--replicas",
    group=SERVING,
    type=Whole(1),
    default=None,
    metavar="N",
    show_default="1",
    help="With --ray: engines for each MODEL, each with its own memory.",
)
@option(
    "--max-replicas",
    group=SERVING,
    type=Whole(1),
    default=None,
    metavar="N",
    show_default="as --replicas",
    help="With --ray: up to how many engines there are for each MODEL while there are many requests.",
)
@option("--open", "open_page", group=COMMON, is_flag=True, help="Open the server's page in a browser.")
@option(
    "--allow-public",
    group=SERVING,
    is_flag=True,
    help="Allow access from other machines without a key: to the models, not to the settings.",
)
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
@option(
    "--lora",
    group=LOADING,
    multiple=True,
    metavar="[NAME=]FILE[:SCALE]",
    shell_complete=complete_files,
    help="A LoRA adapter for MODEL, for requests that send its NAME (by default its file's) as their model. "
    "Repeatable.",
)
@remember_option
def serve(models: tuple[str, ...], **options: Any) -> int:
    """Serve models over OpenAI's and Anthropic's APIs.

    MODELs may also be given without -m. The first is loaded at once and answers requests that name no model;
    the others are loaded on first use. The settings file configures its own models; SPEC and the options of
    loading apply to MODELs.
    """
    try:
        from foredraft.server.auth import check_bind
        from foredraft.server.console.figure_store import FILE_NAME, FigureStore
        from foredraft.server.console.history import History
        from foredraft.server.console.library import Library
        from foredraft.server.console.parts import Parts
        from foredraft.server.request_log import log_to
        from foredraft.server.run import run_server
    except ImportError as error:
        raise MissingDependencyError(
            f"The server needs the package {quoted(error.name)}.",
            hint=f"Install it with: {installation.add_extra('server')}",
        ) from None
    on_ray = check_ray_options(options)
    allow_public, record = options.pop("allow_public"), options.pop("record")
    open_page, chosen = options.pop("open_page"), options.pop("settings_file")
    live = _live_settings(chosen, _overlay((*options.pop("named"), *models), options))
    settings = live.current
    binding.choose(settings.llama_library)  # also for a model that is loaded at the first request only
    for name, model in settings.models.items():
        with _placed(live.where(name)):
            check_drafts(model.speculation())
    check_bind(settings.host, settings.keys, allow_public=allow_public)
    console = stderr_console()
    if on_ray:
        return serve_with_ray(settings, console, file=live.path, allow_public=allow_public)
    log_to(_Lines(), settings.log_format)  # the page has the last lines, too (`console/log_buffer.py`)
    spinner = console.status("Loading the model…") if console.is_terminal else nullcontext()
    with terminable(), _recording(record, console) as recorder, spinner as status:

        def listening(model: str | None, url: str) -> None:
            if status is not None:
                status.stop()
            names = [name for key, it in settings.models.items() for name in (key, *_adapter_names(it))]
            _announce(console, model, url, names, open_page=open_page)

        run_server(
            settings,
            allow_public=allow_public,
            reload=live.poll,
            console=Parts(
                settings_file=live.path,
                live=live,
                library=Library(other_programs()),
                history=History(FigureStore((settings.cache_dir or cache_dir()) / FILE_NAME)),
                hub=os.environ.get("HF_ENDPOINT"),
            ),
            listening=listening,
            loaded=recorder.watch if recorder else None,
            other_programs=other_programs(),
            environment=dict(os.environ),
        )
    return 0


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Errors in the settings of a model say where these are."""
    try:
        yield
    except (ConfigError, ModelNotFoundError) as error:
        error.message = f"{where}: {error.message}"
        raise


def _announce(
    console: Console, model: str | None, url: str, names: Iterable[str], *, open_page: bool
) -> None:
    """Say where the server listens, for clients and people; `names` are those that clients use."""
    page = f"{_openable(url)}/"
    serving = f"Serving {', '.join(names)}: {model} on {url}/v1"
    if model is None:
        page += "#/models"
        serving = f"Serving {url}/v1, but there is no model yet: pull one on the page."
    for line in (serving, f"Page: {page}"):
        _say(console, escape(line))
    if open_page:
        open_in_browser(page, lambda line: _say(console, escape(line)))


def _adapter_names(model: ModelSettings) -> list[str]:
    return [adapter.name for adapter in model.adapters]


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


def _live_settings(chosen: Path | None, overlay: Overlay) -> LiveSettings:
    """The settings of the file, which need not be there yet unless it was named. Raises ConfigError."""
    from foredraft.server.settings_file import FILE_NAME
    from foredraft.server.taking import LiveSettings

    file = chosen or Path(FILE_NAME)
    former = file.with_name(FILE_NAME.replace(NAME, FORMER_NAME))
    if not chosen and not file.exists() and former.exists():  # it may contain the keys
        raise ConfigError(
            f"There is a {former.name} here and no {FILE_NAME}: the project has a new name.",
            hint=f"Rename the file: mv {former.name} {FILE_NAME}",
        )
    return LiveSettings(file.absolute(), overlay, must_exist=chosen is not None)


def _overlay(models: tuple[str, ...], options: dict[str, Any]) -> Overlay:
    """The changes that the command line makes to the settings file. Raises ConfigError, ModelError."""
    from foredraft.server.settings import ModelSettings

    speculation = take_speculation(options)
    check_speculation(speculation)
    remember = take_remember(options)["remember"]
    loading = {**take_model_options(options), "sequences": options.pop("sequences")}
    loading |= {"replicas": options.pop("replicas") or 1, "max_replicas": options.pop("max_replicas")}
    loading["adapters"] = adapters = _adapters(options.pop("lora"), models)
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
        if not own and (path := default_model()) is not None:
            folder = models_dir(kept_in or settings.cache_dir or cache_dir())
            named_so = _name_of(path, folder)
            own = {DEFAULT_NAME: ModelSettings(path=named_so, speculate=str(speculation), **loading)}
        elif adapters and not named:
            raise ConfigError(
                "--lora needs a model on the command line: those of the settings file have adapters there.",
                hint="Write [models.NAME.adapters.ADAPTER] with a path, below the model.",
            )
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


def _adapters(texts: tuple[str, ...], models: tuple[str, ...]) -> tuple[AdapterSettings, ...]:
    """Those of the command line. Raises ConfigError, ModelNotFoundError."""
    from foredraft.server.settings import AdapterSettings

    if texts and len(models) > 1:
        raise ConfigError(
            "--lora is for one model, and several are named.",
            hint="Write [models.NAME.adapters.ADAPTER] with a path into the settings file.",
        )
    found = []
    for text in texts:
        adapter = named_adapter(text)
        [(path, scale)] = adapter.files
        files_of(path)
        found.append(AdapterSettings(name=adapter.name, path=str(path), scale=scale))
    return tuple(found)


@cache
def _name_of(default: Path, folder: Path) -> str:
    """The name of the model that came with Foredraft, which stays right in another environment; its path if
    a model in `folder`, the models folder, has that name, too.
    """
    name = stem_of(default)
    with suppress(ForedraftError):
        if resolve(name, folder, other_programs()) == default:
            return name
    return str(default)


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
