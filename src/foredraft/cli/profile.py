"""`foredraft profile`: measure V(n) here, and from when a draft pays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from foredraft.backends.cpu import physical_cores
from foredraft.bench.cost_measure import FULL, QUICK, Measurement, Plan, measure_profile
from foredraft.bench.cost_plot import check_plot_file, write_plot
from foredraft.bench.cost_report import cost_tables, measurement_dict, setting_text
from foredraft.cli import paths
from foredraft.cli.completion import complete_models
from foredraft.cli.loading import load_engine
from foredraft.cli.options import model_option, model_options, take_model, take_model_options
from foredraft.cli.render import stderr_console
from foredraft.cli.values import Whole
from foredraft.config import Speculation
from foredraft.engine.profile_store import Profile, ProfileStore, profiles_dir
from foredraft.errors import ConfigError
from foredraft.files import check_folder, write_output
from foredraft.protocols import Model

STDOUT = "-"


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@model_option
@click.option("--quick", is_flag=True, help="Measure one depth, fewer sizes and passes: a few seconds.")
@click.option(
    "--depth",
    "depths",
    type=Whole(1),
    multiple=True,
    metavar="TOKENS",
    help="Tokens in the KV cache while measuring. Repeatable.",
    show_default=", ".join(map(str, FULL.depths)),
)
@click.option("--no-save", is_flag=True, help="Do not save the profile for later runs.")
@click.option("--json", "json_file", metavar="FILE", default=None, help="Write JSON; - is standard output.")
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Plot V(n) to a .png or .svg file.",
)
@model_options
def profile(
    model: str | None,
    *,
    quick: bool,
    depths: tuple[int, ...],
    no_save: bool,
    json_file: str | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Measure the cost of forwards of MODEL (default: the default model), and from when a draft pays.

    The model is loaded with the given settings; later runs with the same settings use the saved profile.
    With --json - the tables go to standard error.
    """
    model = take_model(options, model)
    options["threads"] = options["threads"] or physical_cores()  # the same ones throughout
    _check_outputs(json_file, plot)
    errors = stderr_console()
    plan = QUICK if quick else FULL
    plan = replace(plan, depths=sorted(set(depths)), fill_seconds=inf) if depths else plan
    with load_engine(model, Speculation(adaptive=False), take_model_options(options), errors) as engine:
        _check_depths(depths, engine.model, max(plan.rows))
        measured = _measure(engine.model, plan, errors)
    out = errors if json_file == STDOUT else Console(highlight=False)
    _show(measured, out)
    if not no_save:
        _save(measured.profile, errors)
    if json_file is not None:
        _write_json(measured, json_file)
    if plot is not None:
        write_plot(measured.profile, plot)
        errors.print(f"[dim]Plot: {escape(str(plot))}[/]", soft_wrap=True)


# --- checks, before the model is loaded ---------------------------------------------------------------


def _check_outputs(json_file: str | None, plot: Path | None) -> None:
    if json_file is not None and json_file != STDOUT:
        path = Path(json_file)
        if path.is_dir():
            raise ConfigError(f"{path} is a folder.", hint="Name the file to write with --json.")
        check_folder(path)
        if path.exists() and path.suffix != ".json":
            raise ConfigError(f"{path} exists and is not a .json file.", hint="Name another file.")
    if plot is not None:
        check_plot_file(plot)


def _check_depths(depths: Sequence[int], model: Model, rows: int) -> None:
    room = model.info.context_length - rows
    if depths and max(depths) > room:
        raise ConfigError(
            f"--depth {max(depths)} does not fit: with {rows} measured rows at most {room} tokens do.",
            hint="Measure at a smaller depth, or use a larger context (--ctx) where the model has one.",
        )


# --- measuring -----------------------------------------------------------------------------------------


def _measure(model: Model, plan: Plan, errors: Console) -> Measurement:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("measuring", total=1.0)
        return measure_profile(
            model, plan, progress=lambda fraction: progress.update(task, completed=fraction)
        )


# --- output --------------------------------------------------------------------------------------------


def _show(measured: Measurement, out: Console) -> None:
    found = measured.profile
    out.print(f"[bold]{escape(found.name)}[/]: {escape(setting_text(found.key))}", soft_wrap=True)
    for part in cost_tables(measured):
        out.print()
        out.print(part)


def _save(found: Profile, errors: Console) -> None:
    """Save the profile, keeping what earlier runs learned about drafters, which was not measured again."""
    store = ProfileStore(profiles_dir(paths.cache_dir()))
    before = store.load(found.key)
    if before is not None:
        found = replace(found, learnt=before.learnt)
    if store.save(found):
        text = f"Saved in {store.folder}; 'foredraft forget --profiles' erases it."
        errors.print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def _write_json(measured: Measurement, file: str) -> None:
    text = json.dumps(measurement_dict(measured), indent=2, ensure_ascii=False) + "\n"
    if file == STDOUT:
        click.echo(text, nl=False)
        return
    try:
        write_output(Path(file), text.encode(), mode=0o644)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}.") from error
