"""What the console works with, beside the models."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from foredraft.server.console.history import History
from foredraft.server.console.library import Library
from foredraft.server.console.log_buffer import LogBuffer
from foredraft.server.console.puller import Puller
from foredraft.server.console.request_book import RequestBook
from foredraft.server.settings_file import FILE_NAME
from foredraft.server.taking import LiveSettings


@dataclass(slots=True)
class Parts:
    """`settings_file`: where changes are saved. `started`: Unix time of the server's start. `requests`: those
    that run and that have ended. `log`: the last lines of the log. `history`: what was done, in figures.
    `live`: what reads the settings file while the server runs, and adds the command line's models; from None
    `build_app` makes one that adds what the server began with. `library`: the models on this computer.
    `puller`: downloads of models. `hub`: the address of the Hub; None is the Hub library's own setting.
    """

    settings_file: Path = field(default_factory=lambda: Path(FILE_NAME))
    started: float = field(default_factory=time.time)
    requests: RequestBook = field(default_factory=RequestBook)
    log: LogBuffer = field(default_factory=LogBuffer)
    history: History = field(default_factory=History)
    live: LiveSettings | None = None
    library: Library = field(default_factory=Library)
    hub: str | None = None
    puller: Puller = field(default_factory=Puller)
