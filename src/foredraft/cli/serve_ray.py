"""`foredraft serve --ray`: replicas on a Ray cluster."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from foredraft import installation
from foredraft.cli.interrupt import terminable
from foredraft.cli.paths import other_programs
from foredraft.errors import ConfigError, MissingDependencyError, quoted

if TYPE_CHECKING:
    from foredraft.server.settings import ServerSettings

NOT_ASKED = {
    "RAY_USAGE_STATS_ENABLED": "0",  # reports to Ray's makers
    "RAY_DEDUP_LOGS": "0",  # hides lines of a log that are alike
    "RAY_COLOR_PREFIX": "0",  # colours before each line of the log
    "RAY_SERVE_LOG_TO_STDERR": "0",  # Serve's own log, which is in files, too
}
"""What Ray does not do unless the environment says otherwise."""


def check_ray_options(options: dict[str, Any]) -> bool:
    """Take --ray from the options, and return whether it is set. Raises ConfigError for one that contradicts
    it.
    """
    on_ray: bool = options.pop("ray")
    with_ray = [name for name in ("replicas", "max_replicas") if options[name] is not None]
    without = [name for name in ("record", "open_page") if options[name]]
    if with_ray and not on_ray:
        raise ConfigError(f"--{with_ray[0].replace('_', '-')} needs --ray.")
    if without and on_ray:
        flag = {"open_page": "open"}.get(without[0], without[0])
        raise ConfigError(f"--{flag} cannot be combined with --ray: it is about one process.")
    return on_ray


def serve_with_ray(settings: ServerSettings, console: Console, *, file: Path, allow_public: bool) -> int:
    """Serve these settings, whose file is `file`. Raises what `serve_on_ray` raises, and
    MissingDependencyError.
    """
    for name, value in NOT_ASKED.items():
        os.environ.setdefault(name, value)
    try:
        from foredraft.scale.ray_run import serve_on_ray
    except ImportError as error:
        raise MissingDependencyError(
            f"--ray needs the package {quoted(error.name)}.",
            hint=f"Install it with: {installation.add_extra('ray')}",
        ) from None
    spinner = console.status("") if console.is_terminal else nullcontext()
    with terminable(), spinner as status:

        def progress(text: str) -> None:
            if status is not None:
                status.update(text)
                status.start()

        def listening(url: str) -> None:
            if status is not None:
                status.stop()
            line = f"Serving {', '.join(settings.models)} on {url}/v1"
            console.print(escape(line), highlight=False, soft_wrap=True)

        serve_on_ray(
            settings,
            address=os.environ.get("RAY_ADDRESS") or None,
            allow_public=allow_public,
            other_programs=other_programs(),
            file=file,
            environment=dict(os.environ),
            progress=progress,
            listening=listening,
        )
    return 0
