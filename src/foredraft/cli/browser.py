"""Opens a page in the user's browser."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable


def open_in_browser(url: str, say: Callable[[str], None]) -> None:
    """Open a page on another thread, because some browsers only return when they are closed. `say` is called
    with a line if there is no browser.
    """

    def try_it() -> None:
        try:
            opened = webbrowser.get().open(url)
        except (webbrowser.Error, OSError):
            opened = False
        if not opened:
            say(f"There is no browser to open here: open {url} yourself.")

    threading.Thread(target=try_it, name="foredraft-browser", daemon=True).start()
