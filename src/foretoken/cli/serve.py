"""`foretoken serve`: the HTTP server."""

from __future__ import annotations

import ipaddress
import logging
from functools import partial
from pathlib import Path
from typing import Any

import click

from foretoken.cli.options import (
    model_options,
    remember_option,
    speculation_options,
    take_model_options,
    take_remember,
    take_speculation,
)
from foretoken.cli.paths import cache_dir
from foretoken.cli.render import stderr_console
from foretoken.engine.engine import Engine
from foretoken.errors import ConfigError, MissingDependencyError
from foretoken.library import models_dir, resolve
from foretoken.registry import check_speculation

DEFAULT_NAME = "default"


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]…")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port.")
@click.option(
    "--sequences",
    "-np",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Requests that are answered at the same time, for each model.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "off"]),
    default="text",
    show_default=True,
    help="One line a request on standard error, or none.",
)
@click.option("--allow-public", is_flag=True, help="Listen on an address that others can reach.")
@speculation_options
@model_options
@remember_option
def serve(models: tuple[str, ...], **options: Any) -> int:  # fmt: skip
    """Serve MODELs (paths or pulled names; the default model if none) in OpenAI's API.

    The first is loaded at once and answers requests that name no model; others when they are first asked
    for.
    """
    try:
        from foretoken.server.pool import ModelPool
        from foretoken.server.run import run_server
        from foretoken.server.telemetry import Telemetry
    except ImportError as error:
        raise MissingDependencyError(
            f"The server needs the package {error.name!r}.", hint="pip install 'foretoken[server]'"
        ) from None
    host, port = options.pop("host"), options.pop("port")
    _check_bind(host, allowed=options.pop("allow_public"))
    speculation = take_speculation(options)
    check_speculation(speculation)
    settings = {
        **take_model_options(options),
        **take_remember(options),
        "sequences": options.pop("sequences"),
    }
    loaders = {}
    for name, path in _named(models).items():
        loaders[name] = partial(Engine.load, path, speculate=speculation, cache_dir=cache_dir(), **settings)
    log_format = options.pop("log_format")
    _log_requests(log_format)
    console = stderr_console()
    with console.status("Loading the model…") as status:

        def listening(model: str, url: str) -> None:
            status.stop()
            console.print(f"{model} on {url}", highlight=False, soft_wrap=True)

        pool = ModelPool(loaders, next(iter(loaders)), Telemetry(as_json=log_format == "json"))
        run_server(pool, host=host, port=port, listening=listening)
    return 0


def _named(models: tuple[str, ...]) -> dict[str, Path]:
    """The model files by the names that clients use. Raises ModelNotFoundError, ConfigError."""
    if not models:
        return {DEFAULT_NAME: resolve(None, models_dir(cache_dir()))}
    named: dict[str, Path] = {}
    for model in models:
        path = resolve(model, models_dir(cache_dir()))
        name = path.stem
        if name in named:
            raise ConfigError(f"Two models would have the name {name!r}.", hint="Rename one of the files.")
        named[name] = path
    return named


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


def _log_requests(log_format: str) -> None:
    log = logging.getLogger("foretoken.requests")
    log.propagate = False
    log.setLevel(logging.CRITICAL if log_format == "off" else logging.INFO)
    log.addHandler(_Lines())


def _check_bind(host: str, *, allowed: bool) -> None:
    """Raises ConfigError for an address that others can reach, unless that was said on purpose."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not allowed:
        raise ConfigError(
            f"Others could reach a server on {host}, and it has no keys.",
            hint="Listen on 127.0.0.1, or say --allow-public if that is what you want.",
        )
