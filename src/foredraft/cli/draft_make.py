"""`foredraft draft make`: train a small head for a model, from the model's own answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from filecmp import cmp
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from rich.console import Console

from foredraft.cli import paths
from foredraft.cli.completion import complete_files, complete_models
from foredraft.cli.head_files import check_no_head
from foredraft.cli.interrupt import terminable
from foredraft.cli.loading import find_model
from foredraft.cli.options import model_options, take_model_options
from foredraft.cli.render import stderr_console
from foredraft.cli.units import size_text
from foredraft.cli.values import Number
from foredraft.draft.make.job import JUDGING, Made, Stage, Wishes, check_target, making
from foredraft.draft.make.workfolder import HEAD, drop_rows
from foredraft.draft.make.write import safetensors_package
from foredraft.draft.result import as_dict
from foredraft.errors import ConfigError, ForedraftError
from foredraft.files import check_folder
from foredraft.library.catalogue import heads_dir
from foredraft.library.heads import DIGITS, head_of
from foredraft.registry import backend_for

if TYPE_CHECKING:
    from foredraft.draft.make.judge import Judgement
    from foredraft.engine.options import EngineOptions

EVERY_S = 20.0
"""Between two lines of progress where there is no terminal."""

_WORDS = {"answers": "generating answers", "features": "reading them once more", "training": "training"}


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="Write the head to this GGUF file and install nothing.",
    shell_complete=complete_files,
)
@click.option(
    "--minutes",
    type=Number(0),
    default=60,
    show_default=True,
    help="Time for everything, of earlier runs too; more time makes a better head.",
)
@click.option(
    "--from",
    "traces",
    metavar="TRACES",
    type=click.Path(path_type=Path),
    default=None,
    help="Learn from recorded answers first: a file of 'foredraft serve --record', or of 'foredraft bench "
    "--record' with prompts of your own.",
    shell_complete=complete_files,
)
@click.option(
    "--prompts",
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    default=None,
    help="Prompts to answer first: JSON lines with id, category and turns.",
)
@click.option("--no-own", is_flag=True, help="Do not have the model write prompts itself.")
@click.option(
    "--work",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    default=None,
    show_default="in the cache folder",
    help="Where the stages keep their data: some gigabytes while it runs.",
)
@click.option(
    "--safetensors",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    default=None,
    help="Also write the head in speculators' form. Only Foredraft computes it as it was trained: other "
    "programs do not know that a row sees only itself.",
)
@click.option("--install", is_flag=True, help="Install it even if 'auto' would not use it here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@model_options
@terminable()
def make(model: str | None, **options: Any) -> None:
    """Train a head for MODEL (default: the default model): a small network that drafts its next tokens from
    its hidden states. MODEL is a GGUF file or a name.

    It learns from MODEL's own answers: to recorded prompts, to a file of them, and to prompts that MODEL
    writes itself; the shipped ones are kept for measuring. It is installed if 'auto' is faster with it on
    this machine. Ctrl-C stops it; the same command goes on from there.
    """
    began = perf_counter()
    files = _Files(**{name: options.pop(name) for name in ("output", "safetensors", "install", "as_json")})
    path = find_model(model)
    check_no_head(path, options["llama_library"])
    target = check_target(path)
    work = options.pop("work") or paths.making_dir() / target.hash[:DIGITS]
    minutes, traces, prompts = (options.pop(name) for name in ("minutes", "traces", "prompts"))
    own = not options.pop("no_own")
    _check(files, minutes, traces, prompts)
    _try_to_write(files, path)
    if not own and traces is None and prompts is None:
        raise ConfigError(
            "With --no-own there is nothing to learn from.",
            hint="Give prompts (--prompts FILE) or recorded answers (--from FILE).",
        )
    folders = {"cache_dir": paths.cache_dir(), "other_programs": paths.other_programs()}
    loading = cast("EngineOptions", {**take_model_options(options), **folders})
    wishes = Wishes(path, work, 60.0 * minutes, traces, prompts, own=own, loading=loading, began=began)
    console = stderr_console()
    progress = _Lines(console)
    try:
        with making(wishes, progress.tell, progress.note) as made:
            progress.end()
            _Ending(made, wishes, files, console).conclude()
    except KeyboardInterrupt:
        progress.end()
        console.print(
            f"What was done is kept in {work}: the same command goes on from there.",
            highlight=False,
            markup=False,
        )
        raise


@dataclass(frozen=True, slots=True)
class _Files:
    """Where a head goes, and what is printed."""

    output: Path | None
    safetensors: Path | None
    install: bool
    as_json: bool


def _check(files: _Files, minutes: float, traces: Path | None, prompts: Path | None) -> None:
    """Raises ConfigError for what would fail at the end."""
    if minutes <= 0:
        raise ConfigError("--minutes must be more than 0.", hint="An hour is a good beginning: --minutes 60")
    if files.output is not None and files.install:
        raise ConfigError("--output and --install exclude each other.", hint="Leave one of them out.")
    if files.output is not None and files.output.is_dir():
        raise ConfigError(f"{files.output} is a folder.", hint="Name a file, such as head.gguf.")
    for path in (traces, prompts):
        if path is not None and not path.exists():
            kind = "trace" if path == traces else "prompt"
            raise ConfigError(f"There is no {kind} file {path}.", hint="Check its name.")
    for path in (files.output, files.safetensors):
        if path is not None:
            check_folder(path)


def _try_to_write(files: _Files, model: Path) -> None:
    """Raises ConfigError, MissingDependencyError where the head could not be written at the end."""
    output, folder = files.output, files.safetensors
    if output is not None and output.exists():
        if not output.is_file():
            raise ConfigError(f"{output} is not a file.", hint="Name a file, such as head.gguf.")
        if output.samefile(model):
            raise ConfigError(f"{output} is the model itself.", hint="Name another file.")
    _try_folder(heads_dir(paths.models_dir()) if output is None else output.parent)
    if folder is not None:
        safetensors_package()
        _try_folder(folder)


def _try_folder(folder: Path) -> None:
    """Raises ConfigError if no file can be made in a folder, or in the first above it that there is."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"Nothing can be written to {folder}: {error.strerror}.", hint="Name another place for the head."
        ) from None


def time_left(seconds: float) -> str:
    """For people. It is what is left at most: a training may end before its time."""
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h left"
    return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


class _Lines:
    """Progress: one line that is rewritten on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._told = -EVERY_S

    def tell(self, stage: Stage) -> None:
        now = monotonic()
        if stage.name != self._stage:
            self._stage, self._told = stage.name, -EVERY_S
        line = f"{_WORDS[stage.name]}: {stage.done:.0%}, {stage.text}, {time_left(stage.left)}"
        if self._console.is_terminal:
            width = self._console.width - 1
            shown = line if len(line) <= width else line[: width - 1] + "…"
            self._console.print(shown.ljust(width), end="\r", highlight=False, markup=False, no_wrap=True)
        elif now - self._told >= EVERY_S or stage.done >= 1.0:
            self._told = now
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Print a sentence below what is there."""
        self.end()
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Leave the line that is rewritten."""
        if self._console.is_terminal and self._stage:
            self._console.print()
        self._stage = ""


class _Rival(NamedTuple):
    """A head that is used now, and the tokens that a round brings with it."""

    path: Path
    tokens: float


class _Ending:
    """Writes and judges a head, installs it if it is worth it, and says so."""

    def __init__(self, made: Made, wishes: Wishes, files: _Files, console: Console) -> None:
        self._head = made.head
        self._clock = made.clock
        self._wishes = wishes
        self._files = files
        self._console = console

    def conclude(self) -> None:
        from foredraft.draft.make.judge import judge

        files, head = self._files, self._head
        place = files.output or self._wishes.work / HEAD
        head.write(place)
        if files.safetensors is not None:
            head.write_safetensors(files.safetensors)
        with self._console.status("Scoring the head…"), self._clock.stage(JUDGING):
            judged = judge(
                self._wishes.model,
                place,
                head.unseen,
                self._wishes.loading,
                over=lambda: self._clock.left() <= 0.0,
            )
            wanted = files.output is None and (files.install or judged.installs)
            rival = self._rival(place, judged) if wanted else None
        installed = None
        if wanted and (files.install or rival is None or judged.tokens >= rival.tokens):
            installed = self._installed(place, rival)
        drop_rows(self._wishes.work)
        if files.as_json:
            found = self._as_dict(judged, installed or place, installed) | {
                "compared": None if rival is None else {"file": str(rival.path), "tokens": rival.tokens}
            }
            click.echo(json.dumps(found, ensure_ascii=False))
        else:
            self._report(judged, installed or place, installed, rival)

    def _rival(self, place: Path, judged: Judgement) -> _Rival | None:
        """The head that `auto` uses now, judged on the same answers; None if there is none but this one."""
        from foredraft.draft.make.judge import judge

        wishes = self._wishes
        path = self._in_use()
        if path is None or (path.is_file() and cmp(path, place, shallow=False)):
            return None
        seen = count()
        try:
            found = judge(
                wishes.model,
                path,
                self._head.unseen,
                wishes.loading,
                over=lambda: next(seen) >= judged.answers,
            )
        except ForedraftError as error:
            self._say(f"{path}, which was found for this model, cannot be used: {error.message}")
            return None
        return _Rival(path, found.tokens)

    def _in_use(self) -> Path | None:
        """The head that `auto` finds for the model."""
        model = self._wishes.model
        return head_of(model, paths.models_dir(), backend_for(model).weights_hash)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def _installed(self, place: Path, rival: _Rival | None) -> Path:
        """Install the head in place of the one that the models folder has for the model."""
        folder, digits = heads_dir(paths.models_dir()), self._head.facts.target_hash[:DIGITS]
        name = f"{digits}-{self._wishes.model.name.removesuffix('.gguf')}.gguf"
        if rival is not None and rival.path.parent == folder and rival.path.is_file():
            name = rival.path.name  # of the same model by another name
        target = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(place, target)
        used = self._in_use()
        if used != target:
            self._say(f"'auto' finds {used} first: move it away to have the new one used.")
        return target

    def _report(self, judged: Judgement, place: Path, installed: Path | None, rival: _Rival | None) -> None:
        head = self._head
        by_depth = ", ".join(f"{share:.1%}" for share in head.acceptance.by_depth)
        click.echo(f"A head for {head.facts.target_name}, {size_text(place.stat().st_size)} ({head.kind}).")
        click.echo(
            f"Learned from {head.tokens:,} tokens of answers; it can propose {head.facts.sizes.vocabulary:,} "
            "different ones."
        )
        click.echo(
            f"Right at {head.acceptance.rows:,} places in answers that it has not seen, at depth 1, 2, 3: "
            f"{by_depth}."
        )
        click.echo(judged.text)
        if rival is not None:
            click.echo(
                f"On the same answers a round with three draft tokens brings {judged.tokens:.2f} tokens with "
                f"it, and {rival.tokens:.2f} with the head that is used now, {rival.path}."
            )
        if installed is not None:
            click.echo(f"Installed: {installed}")
        elif self._files.output is not None:
            click.echo(f"Written: {place}")
        else:
            why = "Not installed, as the other one is better" if rival else "Not installed"
            click.echo(f"{why}; it lies in {place}. To install it all the same: --install")

    def _as_dict(self, judged: Judgement, place: Path, installed: Path | None) -> dict[str, Any]:
        head = self._head
        return {
            "format": "foredraft-draft-make",
            "version": 1,
            "file": str(place),
            "installed": installed is not None,
            "bytes": place.stat().st_size,
            "quantization": head.kind,
            "target": head.facts.target_name,
            "tokens": head.tokens,
            "vocabulary": head.facts.sizes.vocabulary,
            "acceptance": list(head.acceptance.by_depth),
            "places": head.acceptance.rows,
            "judged_places": judged.places,
            "round_tokens": judged.tokens,
            "score": as_dict(judged.result),
        }
