"""How much of a file's weights is loaded, as llama.cpp tells it."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """Callback for llama.cpp with the loaded fraction of the weights. An exception of `progress` cannot pass
    through native code: it is kept in `raised`, and llama.cpp stops loading.
    """

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self._progress = progress
        self.raised: BaseException | None = None

    def report(self, fraction: float, _user_data: object) -> bool:
        """Called by llama.cpp; whether to go on."""
        if self._progress is not None:
            try:
                self._progress(fraction)
            except BaseException as error:  # noqa: BLE001 - raised again outside of native code
                self.raised = error
        return self.raised is None
