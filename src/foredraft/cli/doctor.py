"""`foredraft doctor`: check the installation and a model, and say how to fix problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from foredraft.cli import coloured, diagnosis, paths
from foredraft.cli.completion import complete_models
from foredraft.cli.interrupt import HeldCtrlC
from foredraft.cli.loading import load_engine
from foredraft.cli.model_summary import kind_of
from foredraft.cli.options import (
    lora_option,
    model_option,
    model_options,
    take_lora,
    take_model,
    take_model_options,
)
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted, size_text
from foredraft.config import Speculation, rpc_endpoints
from foredraft.engine.embedding import load_embedder
from foredraft.errors import ForedraftError, printable
from foredraft.library.repository import repository_of
from foredraft.server.tools.detect import describe_tools

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.rpc.hosts import Host
    from foredraft.backends.llamacpp.system import LlamaCpp
    from foredraft.cli.diagnosis_torch import PyTorch
    from foredraft.types import Capabilities, ModelInfo

CANNOT_RUN = 2
_LABEL = 18

_MEMORY = {
    "weights_mapped": " [dim](mapped from the file; the system can drop and reread them)[/]",
    "weights": " [dim](packed for the kernels, or on the device)[/]",
    "kv_cache": " at most, for {cells:,} tokens [dim](used as tokens are written)[/]",
    "compute": " at most, for the buffers of a forward",
}

Row = tuple[str, str]
"""A label and rich markup."""


class Report:
    """Sections, printed at once and kept for `--json`, and the problems found.

    Printing at once shows how far it got if a native library crashes the process.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._sections: dict[str, Any] = {}
        self.problems: list[ForedraftError] = []

    def section(self, title: str, value: Any, rows: Iterable[Row]) -> None:
        """Add a section. `value` is a dataclass, or None if it could not be determined."""
        self._sections[title.lower()] = None if value is None else asdict(value)
        if self._console is None:
            return
        self.line(f"[bold]{title}[/]")
        for label, text in rows:
            self.line(f"  {label:<{_LABEL}}{text}")
        self.line("")

    def line(self, markup: str) -> None:
        """Print a line, except with `--json`."""
        if self._console is not None:
            self._console.print(printable(markup), soft_wrap=True, highlight=False)

    def failed(self, error: ForedraftError) -> list[Row]:
        """Record a problem; returns the rows that show it."""
        self.problems.append(error)
        rows = [("problem", f"[red]{escape(error.message)}[/]")]
        return [*rows, ("what to do", escape(error.hint))] if error.hint else rows

    def noted(self, error: ForedraftError) -> list[Row]:
        """The rows that show a fault which does not affect the chosen model."""
        rows = [("does not run", f"[yellow]{escape(error.message)}[/]")]
        return [*rows, ("to fix it", escape(error.hint))] if error.hint else rows

    def as_json(self) -> str:
        """The whole report as one JSON object."""
        problems = [{"message": error.message, "hint": error.hint} for error in self.problems]
        values = {"can_run": not problems, "problems": problems, **self._sections}
        return json.dumps(values, indent=2, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class RPCHosts:
    """The machines named with --rpc, which all answered."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether output has the same bytes with and without speculation, as measured by the probe."""

    exact: bool
    note: str


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The form in which tool calls are parsed, and whether it comes from the chat template."""

    known: bool
    note: str


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@model_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--thorough",
    is_flag=True,
    help="Check exactness with more texts, depths and numbers of rows: for some minutes, once.",
)
@model_options
@lora_option
def doctor(model: str | None, *, as_json: bool, thorough: bool, **options: Any) -> int:
    """Check this installation and MODEL (default: the default model), and say what to do.
    MODEL is a GGUF file, a folder of safetensors, or the name of a model. It is loaded with the given
    settings. The exit code is 0 if it can run, 2 if not.
    """
    model = take_model(options, model)
    report = Report(None if as_json else Console(highlight=False))
    software = diagnosis.software()
    report.section("Software", software, _software_rows(software))
    found = _find(model)
    safetensors = isinstance(found, Path) and repository_of(found) is not None
    with HeldCtrlC():
        _check_machine(report, options["llama_library"], needed=not safetensors)
    if options["rpc"]:
        _check_hosts(report, options["rpc"])
    with HeldCtrlC():
        _check_torch(report, needed=safetensors)
    if not report.problems:
        loading = {**take_model_options(options), **take_lora(options)}
        _check_model(report, found, {**loading, "probe": "thorough"} if thorough else loading)
        if thorough and not report.problems and isinstance(found, Path) and kind_of(found) == "generative":
            _check_several(report, found, loading)
    drafters = diagnosis.drafters()
    report.section("Drafters", drafters, _drafter_rows(drafters))
    _check_storage(report)
    if as_json:
        click.echo(report.as_json())
    elif not report.problems:
        report.line("[green]This model can run.[/]")
    for error in report.problems:
        click.echo(coloured("Error: ", fg="red", bold=True) + str(error), err=True)
    return CANNOT_RUN if report.problems else 0


# --- software and machine ------------------------------------------------------------------------------


def _software_rows(software: diagnosis.Software) -> Iterator[Row]:
    yield "foredraft", software.foredraft
    yield "Python", software.python
    yield "platform", escape(software.platform)
    for package in software.packages:
        if package.version:
            yield package.name, f"{escape(package.version)} [dim]({package.purpose})[/]"
        else:
            yield package.name, f"not installed ({package.purpose}): {escape(package.install)}"


def _find(name: str | None) -> Path | ForedraftError:
    try:
        return paths.locate(name)
    except ForedraftError as error:
        return error


def _check_machine(report: Report, llama_library: Path | None, *, needed: bool) -> None:
    from foredraft.backends.llamacpp.system import llama_cpp_facts

    llama: LlamaCpp | None = None
    problem: list[Row] = []
    try:
        llama = llama_cpp_facts(paths.cache_dir(), llama_library)
    except ForedraftError as error:
        problem = report.failed(error) if needed else report.noted(error)
    machine = diagnosis.machine(llama)
    report.section("Machine", machine, [*_machine_rows(machine, llama), *problem])


def _check_hosts(report: Report, names: Sequence[str]) -> None:
    """The machines that compute layers of a model."""
    from foredraft.backends.llamacpp.rpc.library import reach

    try:
        hosts = reach(rpc_endpoints(names), paths.cache_dir())
    except ForedraftError as error:
        report.section("RPC hosts", None, report.failed(error))
        return
    report.section("RPC hosts", RPCHosts(tuple(hosts)), (row for host in hosts for row in _host_rows(host)))


def _host_rows(host: Host) -> Iterator[Row]:
    by = "foredraft rpc-server" if host.ours else "llama.cpp's rpc-server"
    yield host.endpoint, f"{by}, protocol {host.protocol}, round trip {host.round_trip_ms:.2f} ms"
    kind = "processor" if host.on_processors else "device"
    for number, (free, whole) in enumerate(host.memory):
        yield f"{kind} {number}", f"{size_text(free)} of {size_text(whole)} free"


def _machine_rows(machine: diagnosis.Machine, llama: LlamaCpp | None) -> Iterator[Row]:
    yield "processor", escape(machine.processor)
    yield "physical cores", str(machine.cores)
    if machine.memory:
        yield "memory", size_text(machine.memory)
    if machine.features:
        yield "features", " ".join(machine.features)
    if machine.unused:
        yield (
            "not used",
            f"{' '.join(machine.unused)} (by llama.cpp; Foredraft's kernels use AVX-512 and VNNI)",
        )
    if llama is None:
        return
    yield "llama.cpp", escape(llama.name if llama.chosen else f"{llama.name}, {llama.path}") + _by_whom(llama)
    yield "own kernels", machine.kernels or f"[yellow]left out[/]: {escape(machine.without_kernels)}"
    for device in machine.devices:
        memory = f", {size_text(device.memory_bytes)}" if device.memory_bytes else ""
        what = f"{device.name} ({device.kind}): {device.description or 'no description'}{memory}"
        yield "device", escape(what)
    for reason in machine.unloaded:
        yield "not loaded", f"[yellow]{escape(reason)}[/]"
    yield "GPU offload", "yes" if machine.gpu_offload else _no_gpu(llama)
    if llama.built_for and not machine.gpu_offload:
        for line in llama.said:
            yield "ggml says", escape(printable(line))


def _no_gpu(llama: LlamaCpp) -> str:
    if llama.built_for:
        return escape(f"no: this library was built for {', '.join(llama.built_for)} and finds no GPU")
    return "no: this library was built for processors only (see --llama-library)"


def _by_whom(llama: LlamaCpp) -> str:
    return " [dim](named with --llama-library)[/]" if llama.chosen else ""


def _check_torch(report: Report, *, needed: bool) -> None:
    """Check PyTorch, an optional extra: without it only safetensors models cannot run."""
    from foredraft.cli.diagnosis_torch import torch_facts

    try:
        torch = torch_facts()
    except ForedraftError as error:
        report.section("PyTorch", None, report.failed(error) if needed else report.noted(error))
        return
    report.section("PyTorch", torch, _torch_rows(torch))


def _torch_rows(torch: PyTorch) -> Iterator[Row]:
    yield "version", escape(f"{torch.version}, with transformers {torch.transformers}")
    yield "device", escape(torch.device)
    formats = (f"{name} in {computed}" for name, computed in torch.formats.items())
    yield "computes", f"weights stored in {', '.join(formats)}"
    if torch.device == "cpu" and not torch.bf16:
        yield "bf16", "this processor has no instructions for it (AVX512_BF16, AMX)"
    if torch.onednn:
        halves = ", FBGEMM for weights that fit fp16" if torch.fbgemm else ""
        yield "products", f"oneDNN{halves}: the same bits for one row and many"
    else:
        yield "products", "[yellow]torch's own: not exact, and drafts cost more[/]"


# --- model ---------------------------------------------------------------------------------------------


def _check_model(report: Report, found: Path | ForedraftError, options: dict[str, Any]) -> None:
    try:
        if isinstance(found, ForedraftError):
            raise found
        file = diagnosis.model_file(found)
    except ForedraftError as error:
        report.section("Model", None, report.failed(error))
        return
    report.section("Model", file, _file_rows(file))
    if file.kind not in (None, "generative"):
        _check_embedder(report, file.path, options)
        return
    try:
        kept = {**options, "remember": False}
        with load_engine(file.path, Speculation(), kept, stderr_console(), notes=False) as engine:
            info, able = engine.model.info, engine.model.capabilities
            report.section("Loaded", info, _loaded_rows(info))
            template = diagnosis.chat_template(engine.model)
            report.section("Chat template", template, _template_rows(template))
            exactness = Exactness(able.batch_invariant, able.invariance_note)
            report.section("Exactness", exactness, _exactness_rows(exactness, able))
            tokenizer = engine.model.tokenizer
            variables = tokenizer.template_traits.variables
            tools = ToolCalls(*describe_tools(tokenizer.chat_template or "", variables))
            report.section("Tools", tools, _tool_rows(tools))
            speculation = diagnosis.speculation(engine)
            report.section("Speculation", speculation, _speculation_rows(speculation))
            memory = diagnosis.memory(engine.model)
            report.section("Memory", memory, _memory_rows(memory))
    except ForedraftError as error:
        report.section("Loading", None, report.failed(error))


def _check_embedder(report: Report, path: Path, options: dict[str, Any]) -> None:
    """Load an embedding model or reranker, and compute a text."""
    where = {"cache_dir": paths.cache_dir(), "other_programs": paths.other_programs()}
    try:
        embedder = load_embedder(path, {**options, **where})  # type: ignore[typeddict-item]
    except ForedraftError as error:
        report.section("Loading", None, report.failed(error))
        return
    try:
        report.section("Loaded", embedder.info, _loaded_rows(embedder.info))
        embedder.compute([embedder.encode("a")])
    except ForedraftError as error:
        report.section("Computing", None, report.failed(error))
    finally:
        embedder.close()


def _check_several(report: Report, found: Path | ForedraftError, options: dict[str, Any]) -> None:
    """Exactness as the server needs it, thoroughly: with several sequences."""
    from foredraft.server.settings import ModelSettings

    count = ModelSettings(path=str(found)).sequences
    options = {**options, "probe": "thorough", "sequences": count}
    title = f"Exactness of {count} requests at once"
    try:
        if isinstance(found, ForedraftError):
            raise found
        with load_engine(found, Speculation(adaptive=False), options, stderr_console()) as engine:
            able = engine.model.capabilities
            exactness = Exactness(able.batch_invariant, able.invariance_note)
            report.section(title, exactness, _exactness_rows(exactness, able))
    except ForedraftError as error:
        report.section(title, None, report.failed(error))


def _file_rows(file: diagnosis.ModelFile) -> Iterator[Row]:
    what = "folder" if file.path.is_dir() else "file"
    yield what, escape(str(file.path)) + (" [dim](the default model)[/]" if file.default else "")
    yield "size", f"{size_text(file.size)}, {file.parameters:,} parameters"
    yield "quantization", escape(file.quantization or "unknown")
    if file.kind not in (None, "generative"):
        yield "kind", f"{file.kind}: the server answers with it"
    yield "architecture", escape(file.architecture)
    yield "context length", file.positions or "not stated"


def _loaded_rows(info: ModelInfo) -> Iterator[Row]:
    yield "runs with", escape(info.backend)
    yield "device", escape(info.device)
    chosen = f" [dim]({escape(info.context_chosen)})[/]" if info.context_chosen else ""
    yield "context", f"{info.context_length:,} tokens{chosen}"
    for label, value in info.settings.items():
        yield label.replace("_", " "), escape(value)


def _template_rows(template: diagnosis.ChatTemplate) -> Iterator[Row]:
    if not template.present:
        yield "messages", "[yellow]no[/]: it has no chat template and takes plain text only (run --raw)"
        return
    if template.error is not None:
        yield "messages", f"[red]no[/]: its chat template cannot be used. {escape(template.error)}"
        yield (
            "what to do",
            "use plain text (run --raw, /v1/completions), or another file of the model",
        )
        return
    yield (
        "messages",
        "[green]yes[/]" + (", alternating between user and assistant" if template.alternates else ""),
    )
    places = {"anywhere": "anywhere", "first": "at the beginning", "nowhere": "in the user's message"}
    yield "system prompt", places[template.system]
    yield "tools", "described by the template" if template.tools else "described in the system prompt"
    yield (
        "reasoning",
        escape(f"set by {', '.join(template.reasoning)}" if template.reasoning else "cannot be switched"),
    )


def _exactness_rows(exactness: Exactness, able: Capabilities) -> Iterator[Row]:
    if exactness.exact:
        yield "exact", "[green]yes[/]: the same bytes with and without speculation"
    else:
        yield "exact", "[yellow]no[/]: speculation keeps the distribution, not always the bytes"
    yield "measured", escape(exactness.note)
    yield "rows", f"up to {able.max_rows} of one sequence are verified in one forward"


def _tool_rows(tools: ToolCalls) -> Iterator[Row]:
    yield "tool calls", escape(tools.note) if tools.known else f"[yellow]{escape(tools.note)}[/]"


def _speculation_rows(speculation: diagnosis.Speculation) -> Iterator[Row]:
    if speculation.runs:
        yield "auto", f"[green]runs[/]: {escape(', '.join(speculation.drafters))}, where it pays"
    else:
        yield "auto", f"[yellow]does not run[/]: {escape(speculation.reason or 'no reason is known')}"
    if speculation.head is not None:
        yield "head", escape(speculation.head)
    for note in speculation.notes:
        yield "note", escape(note)
    if speculation.step_ms is not None:
        yield "plain step", f"{speculation.step_ms:.2f} ms per token, near the start of the context"
    for point in speculation.break_even:
        yield f"draft of {point.draft}", _break_even_text(point)


def _memory_rows(memory: diagnosis.Memory) -> Iterator[Row]:
    for part, size in memory.parts.items():
        yield part.replace("_", " "), size_text(size) + _MEMORY.get(part, "").format(cells=memory.cells)
    if memory.resident:
        both = f"{size_text(memory.resident)} resident, {size_text(memory.anonymous)} of it anonymous"
        yield "this process", f"{both} [dim](with Python, drafters and the graphs of forwards)[/]"


def _break_even_text(point: diagnosis.BreakEven) -> str:
    needed = point.cost - 1
    text = f"takes {point.cost:.2f} plain steps: "
    if needed >= point.draft:
        return text + "does not pay even if all of it is accepted"
    return text + f"pays from {max(0.0, needed):.2f} accepted tokens on"


# --- drafters and storage ------------------------------------------------------------------------------


def _drafter_rows(drafters: diagnosis.Drafters) -> Iterator[Row]:
    yield "available", escape(", ".join(drafters.available))
    yield "from plugins", escape(", ".join(drafters.plugins) or "none")
    if drafters.plugin_backends:
        yield "plugin backends", escape(", ".join(drafters.plugin_backends))


def _check_storage(report: Report) -> None:
    try:
        storage = diagnosis.storage()
    except OSError as error:
        rows = [("problem", f"[yellow]{escape(str(error))}[/]")]  # only a cache: the model runs without it
        report.section("Storage", None, rows)
        return
    report.section("Storage", storage, _storage_rows(storage))


def _storage_rows(storage: diagnosis.Storage) -> Iterator[Row]:
    yield "folder", escape(str(storage.folder))
    yield "pulled models", _kept_text(storage.models)
    yield "measurements", _kept_text(storage.measurements)
    yield "profiles", _kept_text(storage.profile_files)
    for profile in storage.profiles:
        yield "", escape(_profile_text(profile))
    outputs = storage.outputs
    texts = f" ({outputs.outputs:,} outputs, {outputs.tokens:,} tokens)" if outputs.files else ""
    yield "past outputs", _kept_text(diagnosis.Kept(outputs.files, outputs.bytes)) + texts
    yield "n-gram counts", _kept_text(storage.counts)
    yield "prefix cache", _kept_text(storage.prefixes)
    yield "typed lines", _kept_text(storage.history)
    yield "to erase", "past outputs, n-gram counts, prefix cache and typed lines: foredraft forget"
    if storage.profile_files.files:
        yield "", "profiles too: foredraft forget --profiles"


def _profile_text(profile: diagnosis.StoredProfile) -> str:
    threads = counted(int(profile.threads), "thread") if profile.threads.isdecimal() else "threads as set"
    setting = f"{profile.backend}, {profile.device}, {threads}, KV {profile.kv_type}"
    depths = ", ".join(f"{depth:,}" for depth in profile.depths)
    return f"{profile.model} ({profile.file}): {setting}; measured {profile.measured} at {depths} tokens"


def _kept_text(kept: diagnosis.Kept) -> str:
    if not kept.files:
        return "none"
    return f"{counted(kept.files, 'file')}, {size_text(kept.bytes)}"
