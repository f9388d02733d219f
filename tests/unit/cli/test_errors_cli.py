"""Everything that can be asked wrongly: exit code 2, one clear message, what to do, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image as Pillow

import gguf_factory
import gguf_heads
from command_line import Command, Ran
from foredraft.cli import COMMANDS, DEBUG_VARIABLE, run_command
from foredraft.library.catalogue import install_default_model
from gguf_vision import llava


def run(command: Command, model: object, *arguments: object, stdin: bytes = b"") -> Ran:
    return command("run", "-m", model, "-t", 1, "-n", 4, "--temp", 0, *arguments, stdin=stdin)


def check_refused(ran: Ran, says: str) -> None:
    """Refused before anything was generated."""
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "Internal error" not in ran.err
    assert ran.err.count("Error:") == 1
    assert says in ran.err


# --- models --------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there(foredraft: Command, tmp_path: Path) -> None:
    check_refused(run(foredraft, tmp_path / "none.gguf", "Hello"), f"There is no file {tmp_path}/none.gguf")
    ran = run(foredraft, "nonesuch", "Hello")
    check_refused(ran, "There is no model 'nonesuch'")
    assert "foredraft models list" in ran.err


def test_a_misspelt_model_is_named(foredraft: Command, tiny: Path) -> None:
    check_refused(run(foredraft, tiny.with_name("tini.gguf"), "Hello"), f"Did you mean {tiny}?")


def test_no_model_at_all(foredraft: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.library.names.default_model", lambda: None)
    ran = foredraft("run", "Hello")
    check_refused(ran, "No model was named, and no default model is installed")
    assert install_default_model() in ran.err


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (gguf_factory.not_gguf, "not a GGUF file"),
        (gguf_factory.vocab_only, "only a vocabulary"),
        (gguf_factory.unknown_architecture, "an architecture that this llama.cpp does not support"),
        (lambda path: path.touch(), "not a GGUF file"),
        (lambda path: path.write_bytes(b"GGUF"), "bad.gguf"),
    ],
)
def test_a_file_that_is_no_usable_model(foredraft: Command, tmp_path: Path, make: object, says: str) -> None:
    assert callable(make)
    path = tmp_path / "bad.gguf"
    make(path)
    check_refused(run(foredraft, path, "Hello"), says)


@pytest.mark.parametrize("words", [("{}",), ("{}", "What is it?"), ("-m", "{}", "What is it?")])
def test_a_text_is_no_model(foredraft: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("The secret word is kiwi.")
    ran = foredraft("run", *(word.format(path) for word in words))
    check_refused(ran, f"{path} is not a model")
    assert "foredraft run -f FILE" in ran.err
    check_refused(foredraft("chat", path), f"{path} is not a model")
    check_refused(foredraft("serve", path, "--port", 0), f"{path} is not a model")


def test_a_missing_chat_template_is_said_before_the_model_is_loaded(
    foredraft: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gguf_factory.tiny_llama(tmp_path / "base.gguf", chat_template=None)
    assert foredraft("run", "-m", base, "--raw", "Once", "-t", 1, "-n", 2).code == 0
    monkeypatch.setattr("foredraft.cli.loading.load_engines", lambda *_: pytest.fail("it was loaded"))
    for arguments in (("run", "-m", base, "Hello"), ("chat", "-m", base)):
        ran = foredraft(*arguments)
        check_refused(ran, "base.gguf has no chat template")
        assert "--raw" in ran.err


def test_a_missing_chat_template_hides_no_other_mistake(
    foredraft: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gguf_factory.tiny_llama(tmp_path / "base.gguf", chat_template=None)
    picture = tmp_path / "dot.png"
    Pillow.new("RGB", (8, 8)).save(picture)
    monkeypatch.setattr("foredraft.cli.loading.load_engines", lambda *_: pytest.fail("it was loaded"))
    for options, says in (
        (("--lora", base), "is not a LoRA adapter"),
        (("--ctx", 1_000_000), "not 1000000"),
        (("--mmproj", "nofile.gguf"), "There is no file nofile.gguf"),
        (("--image", picture), "This model does not see images"),
    ):
        check_refused(foredraft("run", "-m", base, *options, "Hello"), says)


def test_yarn_beyond_what_it_is_good_for_has_a_note(foredraft: Command, tmp_path: Path) -> None:
    base = gguf_factory.tiny_llama(tmp_path / "base.gguf", ctx_train=64)
    for times, noted in ((4, False), (8, True)):
        ran = run(foredraft, base, "Hi", "--rope-scaling", "yarn", "--ctx", 64 * times)
        assert ran.code == 0
        assert ("YaRN is good for about 4 times" in ran.err.replace("\n", " ")) == noted


def test_a_vision_file_is_inspected_as_one(foredraft: Command, tmp_path: Path) -> None:
    ran = foredraft("models", "inspect", llava(tmp_path / "l").with_name("mmproj-tiny-llava-f16.gguf"))
    assert ran.code == 0
    assert "a vision file for models 64 wide" in ran.out
    assert "vocabulary" not in ran.out


def test_the_vision_of_a_model_is_no_model(foredraft: Command, tmp_path: Path) -> None:
    mmproj = llava(tmp_path / "l").with_name("mmproj-tiny-llava-f16.gguf")
    for arguments in (("run", "-m", mmproj, "Hi"), ("chat", "-m", mmproj), ("bench", "-m", mmproj)):
        check_refused(foredraft(*arguments), "is the vision of a model, not a model")


def test_a_chat_template_that_cannot_be_used_is_said_when_the_model_is_loaded(
    foredraft: Command, tmp_path: Path
) -> None:
    broken = gguf_factory.tiny_llama(tmp_path / "broken.gguf", chat_template="a\n{% nonsense %}")
    assert foredraft("run", "-m", broken, "--raw", "Once", "-t", 1, "-n", 2).code == 0
    for arguments in (("run", "-m", broken, "Hello"), ("chat", "-m", broken)):
        ran = foredraft(*arguments, "-t", 1)
        check_refused(ran, "The chat template of broken.gguf cannot be used. It cannot be compiled: line 2: ")
        assert "--raw" in ran.err


@pytest.mark.parametrize("command", ["chat", "bench", "doctor", "profile"])
def test_a_model_that_is_named_twice(foredraft: Command, tiny: Path, command: str) -> None:
    check_refused(foredraft(command, tiny, "-m", "other.gguf"), "Two models are named")


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 0.999])
def test_a_truncated_model(foredraft: Command, tiny: Path, tmp_path: Path, keep: float) -> None:
    path = gguf_factory.truncated(tiny, tmp_path / "cut.gguf", keep=keep)
    check_refused(run(foredraft, path, "Hello"), "cut.gguf")


def test_a_context_longer_than_the_model_was_trained_for(foredraft: Command, tiny: Path) -> None:
    ran = run(foredraft, tiny, "Hello", "--ctx", 4096)
    check_refused(ran, "trained for 512 tokens of context")
    assert "at most 512" in ran.err


def test_a_kv_type_that_does_not_exist(foredraft: Command, tiny: Path) -> None:
    for kv_type in ("q3_0", "f16/q3_0", "q3_0/f16"):
        ran = run(foredraft, tiny, "Hello", "--kv-type", kv_type)
        check_refused(ran, "no KV cache type 'q3_0'")
        assert "bf16" in ran.err


# --- prompts -------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_context(foredraft: Command, tiny: Path) -> None:
    ran = run(foredraft, tiny, "word " * 400, "--ctx", 256)
    check_refused(ran, "the context holds 256, answer included")
    assert "larger context (--ctx, context_length): it was trained for 512 tokens" in ran.err


def test_a_prompt_longer_than_any_context_of_the_model(foredraft: Command, tiny: Path) -> None:
    for arguments in ((), ("--ctx", 512)):
        ran = run(foredraft, tiny, "word " * 800, *arguments)
        check_refused(ran, "the context holds 512, answer included")
        assert "by YaRN: --ctx N --rope-scaling yarn (context_length, rope_scaling)." in ran.err


@pytest.mark.parametrize("arguments", [("",), ("  ",), ("-p", ""), ("-f", "-"), ()])
def test_an_empty_prompt(foredraft: Command, tiny: Path, arguments: tuple[str, ...]) -> None:
    check_refused(run(foredraft, tiny, *arguments), "The prompt is empty")


def test_two_prompts(foredraft: Command, tiny: Path) -> None:
    check_refused(run(foredraft, tiny, "one", "-p", "two"), "more than once")
    check_refused(run(foredraft, tiny, "one", "two"), "Too many arguments")


def test_a_prompt_file_that_cannot_be_read(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    check_refused(run(foredraft, tiny, "-f", tmp_path / "none.txt"), "No such file")
    check_refused(run(foredraft, tiny, "-f", tmp_path), "directory")
    check_refused(run(foredraft, tiny, "-f", tiny), "is not UTF-8 text")
    check_refused(run(foredraft, tiny, stdin=b"\xff\xfe"), "not UTF-8 text")


def test_a_prediction_that_cannot_be_read(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    check_refused(run(foredraft, tiny, "Hi", "--prediction", tmp_path / "none.txt"), "does not exist")
    check_refused(run(foredraft, tiny, "Hi", "--prediction", tmp_path), "is a directory")
    check_refused(run(foredraft, tiny, "Hi", "--prediction", tiny), "is not UTF-8 text")


# --- speculation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--speculate", "sufix"), "no drafter named 'sufix'"),
        (("--speculate", "suffix:length=3"), "'suffix' has no option 'length'"),
        (("--speculate", "suffix:max=many"), "'many' is not a whole number"),
        (("--speculate", "suffix:max=-1"), "must not be negative"),
        (("--speculate", "suffix:max"), "Cannot read 'max'"),
        (("--speculate", ""), "The speculation string is empty"),
        (("--speculate", "off;suffix"), "'off' cannot be combined"),
        (("--speculate", "auto", "--draft", "d.gguf"), "both configure speculation"),
        (("--spec-type", "ngram-mod", "--speculative-config", "{}"), "both configure speculation"),
        (("--spec-draft-n-max", "4"), "no type of speculation is turned on"),
        (("-d", "4"), "-d needs a draft model"),
        (("--speculative-config", "{"), "not valid JSON"),
        (
            ("--spec-type", "ngram-cache", "-lcs", "no/such/file"),
            "the static file no/such/file cannot be used",
        ),
    ],
)
def test_speculation_that_cannot_be_meant(
    foredraft: Command, tiny: Path, arguments: tuple[str, ...], says: str
) -> None:
    check_refused(run(foredraft, tiny, "Hello", *arguments), says)


def test_a_wrong_speculation_is_found_before_the_model_is_loaded(foredraft: Command) -> None:
    check_refused(run(foredraft, "nonesuch", "Hello", "--speculate", "sufix"), "no drafter named 'sufix'")


# --- a draft model that cannot be used -----------------------------------------------------------------


def bad_draft_model(kind: str, tiny: Path, folder: Path) -> Path:
    path = folder / "draft.gguf"
    if kind == "not a GGUF":
        gguf_factory.not_gguf(path)
    elif kind == "truncated":
        gguf_factory.truncated(tiny, path)
    elif kind == "vocabulary only":
        gguf_factory.vocab_only(path)
    return path


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("not a GGUF", "not a GGUF file"),
        ("truncated", "draft.gguf"),
        ("vocabulary only", "only a vocabulary"),
    ],
)
@pytest.mark.parametrize("flag", ["--draft", "-md"])
def test_a_draft_model_that_cannot_be_used_is_left_out(
    foredraft: Command, tiny: Path, tmp_path: Path, kind: str, says: str, flag: str
) -> None:
    path = bad_draft_model(kind, tiny, tmp_path)
    plain = run(foredraft, tiny, "Hello", "--speculate", "off")
    ran = run(foredraft, tiny, "Hello", flag, path)
    assert ran.code == 0
    assert ran.out == plain.out
    (note,) = [line for line in ran.err.splitlines() if line.startswith("Note:")]
    assert says in note
    assert str(path) in note
    assert "Traceback" not in ran.err
    spec = json.loads(run(foredraft, tiny, "Hello", flag, path, "--json").out)["speculation"]
    assert spec["active"] is False
    assert spec["reason"] == "none of the drafters asked for can be used"
    assert says in spec["notes"][0]


@pytest.mark.parametrize("flags", [("--draft",), ("-md",), ("--speculate", "auto;draft-model:model={}")])
def test_a_draft_model_that_is_named_and_not_there(
    foredraft: Command, tiny: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "none.gguf"
    *before, last = flags
    given = (*before, last.format(path)) if "{}" in last else (*flags, path)
    says = f"The draft model cannot be used: There is no file {path}."
    check_refused(run(foredraft, tiny, "Hello", *given), says)
    check_refused(foredraft("chat", "-m", tiny, *given), says)
    check_refused(foredraft("serve", "-m", tiny, *given, "--port", 0), says)


def test_a_draft_model_of_the_settings_file_that_is_not_there(
    foredraft: Command, tiny: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "foredraft.toml"
    settings.write_text(f"[models.tiny]\npath = '{tiny}'\ndraft_model = '{tmp_path}/none.gguf'\n")
    ran = foredraft("serve", "--config", settings, "--port", 0)
    check_refused(
        ran,
        f"{settings}, [models.tiny]: The draft model cannot be used: There is no file {tmp_path}/none.gguf",
    )


def test_what_is_wrong_with_the_settings_of_a_model_is_said_with_the_file_and_the_table(
    foredraft: Command, tiny: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "foredraft.toml"
    settings.write_text(f"[models.own]\npath = '{tiny}'\ncontext_length = 4096\n")
    ran = foredraft("serve", "--config", settings, "--port", 0)
    check_refused(
        ran, f"{settings}, [models.own]: {tiny.name} was trained for 512 tokens of context, not 4096."
    )
    ran = foredraft("serve", "-m", tiny, "--ctx", 4096, "--port", 0)
    check_refused(ran, f"Model {tiny.stem}: {tiny.name} was trained for 512 tokens")


def test_a_draft_model_by_the_name_of_a_pulled_model(foredraft: Command, tiny: Path, own_cache: Path) -> None:
    (own_cache / "models").mkdir()
    gguf_factory.tiny_llama(own_cache / "models" / "Parrot-F32.gguf")
    ran = run(foredraft, tiny, "Hello", "--draft", "parrot-f32", "--json")
    assert "Note:" not in ran.err
    assert json.loads(ran.out)["speculation"]["active"] is True


def test_the_other_drafters_go_on(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    spec = f"suffix;draft-model:model={gguf_factory.not_gguf(tmp_path / 'none.gguf')}"
    ran = run(foredraft, tiny, "Hello", "--speculate", spec, "--json")
    assert ran.code == 0
    assert "none.gguf" in ran.err
    speculation = json.loads(ran.out)["speculation"]
    assert "none of the drafters" not in speculation["reason"]
    assert set(speculation["drafters"]) <= {"suffix"}


# --- sampling and other values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--temperature", "-1"), "-1 is not a finite number, at least 0"),
        (("--temperature", "nan"), "nan is not a finite number"),
        (("--temperature", "hot"), "hot is not a finite number"),
        (("--top-p", "2"), "--top-p"),
        (("--top-p", "-0.5"), "--top-p"),
        (("--top-k", "-1"), "--top-k"),
        (("--min-p", "1.5"), "--min-p"),
        (("--repetition-penalty", "0"), "--repetition-penalty"),
        (("--presence-penalty", "inf"), "--presence-penalty"),
        (("--stop", ""), "it is empty"),
        (("--verify", "hope"), "--verify"),
        (("--ctx", "-1"), "--ctx"),
        (("--mem", "disk"), "--mem"),
        (("-ngl", "-2"), "-ngl"),
        (("--batch", "0"), "--batch"),
        (("--logprobs", "21", "--json"), "--logprobs"),
        (("--logprobs", "2"), "Add --json"),
        (("--no-such-flag",), "--no-such-flag"),
    ],
)
def test_values_out_of_range(foredraft: Command, tiny: Path, arguments: tuple[str, ...], says: str) -> None:
    check_refused(run(foredraft, tiny, "Hello", *arguments), says)


def test_a_command_that_does_not_exist(foredraft: Command) -> None:
    check_refused(foredraft("runn"), "No such command 'runn'")


# --- the outermost layer -------------------------------------------------------------------------------


def test_a_bug_is_owned_up_to(foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("foredraft.cli.run.load_engine", broken)
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    ran = run(foredraft, tiny, "Hello")
    assert ran.code == 1
    assert "Internal error: ZeroDivisionError: oops" in ran.err
    assert DEBUG_VARIABLE in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ZeroDivisionError):
        run_command(["run", "-m", str(tiny), "Hello"])


def test_help_and_version(foredraft: Command) -> None:
    for arguments, says in (
        (("--help",), "speculative decoding with nothing to tune"),
        (("run", "-h"), "--speculate"),
        (("--version",), "foredraft, version"),
    ):
        ran = foredraft(*arguments)
        assert ran.err == ""
        assert ran.code == 0
        assert says in ran.out


def test_the_help_lists_every_command(foredraft: Command) -> None:
    out = foredraft("--help").out
    for name, (_, line) in COMMANDS.items():
        assert f"\n  {name} " in out
        assert line in out


IMPORTED = """
import sys
from foredraft.cli import run_command
code = run_command(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "needless"),
    [
        (("--version",), {"numpy", "rich", "jinja2"}),
        (("--help",), {"numpy", "rich", "jinja2"}),
        (("nonesuch",), {"numpy", "rich", "jinja2"}),
        (("run", "--help"), {"jinja2", "xllamacpp", "foredraft.bench", "foredraft.engine.engine"}),
        (("chat", "--help"), {"jinja2", "xllamacpp", "foredraft.bench", "foredraft.engine.engine"}),
        (("models", "--help"), {"jinja2", "xllamacpp", "foredraft.bench", "foredraft.engine.engine"}),
    ],
)
def test_what_needs_no_model_starts_without_engine(arguments: tuple[str, ...], needless: set[str]) -> None:
    command = [sys.executable, "-c", IMPORTED, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not needless.intersection(ran.stderr.split())
    assert "foredraft.cli" in ran.stderr.split(), "the modules were listed"


WITHOUT_EXTRAS = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from foredraft.cli import COMMANDS, run_command
sys.exit(any([run_command([name, "--help"]) for name in COMMANDS]))
"""


def test_every_command_has_a_help_without_the_extras() -> None:
    packages = "fastapi huggingface_hub llguidance matplotlib prometheus_client pydantic pydantic_core"
    packages += " starlette torch transformers uvicorn xllamacpp"
    command = [sys.executable, "-c", WITHOUT_EXTRAS, packages]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


SMALLEST = """
import sys
from foredraft.cli import main
sys.argv = ["foredraft", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_unicode(tiny: Path, own_cache: Path, encoding: str) -> None:
    command = [sys.executable, "-c", SMALLEST, "run", str(tiny), "Hello", "-t", "1", "-n", "8"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert b"?" in ran.stdout


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize(
    ("changes", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_errors_have_the_colours_that_are_wanted(changes: dict[str, str], coloured: bool) -> None:
    leader, follower = os.openpty()
    usual = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-c", SMALLEST, "run", "nonesuch", "Hello"]
    try:
        environment = {**usual, "TERM": "xterm", **changes}
        ran = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=follower, env=environment, check=False
        )
        said = os.read(leader, 1 << 16)
    finally:
        os.close(leader)
        os.close(follower)
    assert ran.returncode == 2
    assert b"no model 'nonesuch'" in said
    assert (b"\x1b[31m" in said) is coloured


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes there")
def test_a_reader_that_has_gone(tiny: Path, own_cache: Path) -> None:
    command = [sys.executable, "-c", SMALLEST, "run", str(tiny), "Hello", "-t", "1", "-n", "64"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert ran.returncode == 1
    assert ran.stderr == b""


# --- reported, not the command line's ------------------------------------------------------------------


def test_a_kv_type_that_does_not_fit_the_model(foredraft: Command, tiny: Path) -> None:
    check_refused(run(foredraft, tiny, "Hello", "--kv-type", "q4_0"), "q4_0")


def test_half_a_kv_type(foredraft: Command, tiny: Path) -> None:
    check_refused(run(foredraft, tiny, "Hello", "--kv-type", "f16/"), "KV cache type")


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-this-name/m.gguf"])
def test_a_model_whose_name_cannot_be_a_file(foredraft: Command, name: str) -> None:
    check_refused(run(foredraft, name, "Hello"), "There is no")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize(
    "arguments",
    [("run", "nonesuch", "Hello"), ("run", "--temp", "x" * 70, "Hello"), ("chat", "--no-such-option-here")],
)
def test_messages_break_between_words_on_a_terminal(arguments: tuple[str, ...]) -> None:
    def said(stream: int | None) -> str:
        command = [sys.executable, "-c", SMALLEST, *arguments]
        environment = {**os.environ, "COLUMNS": "40", "NO_COLOR": "1", "TERM": "xterm"}
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream or subprocess.PIPE,
            env=environment,
            check=False,
        )
        assert ran.returncode == 2
        return (os.read(leader, 1 << 16) if stream else ran.stderr).decode()

    leader, follower = os.openpty()
    try:
        shown = said(follower).replace("\r\n", "\n")
    finally:
        os.close(leader)
        os.close(follower)
    piped = said(None)
    assert shown.split() == piped.split()
    assert all(len(line) <= 40 or " " not in line for line in shown.split("\n"))
    assert max(map(len, piped.split("\n"))) > 40


def test_a_head_is_no_model(foredraft: Command, tmp_path: Path, tiny: Path) -> None:
    head = gguf_heads.tiny_eagle3(tmp_path / "h-eagle3.gguf")
    ran = foredraft("run", "-m", head, "--raw", "Hello", "-n", 2)
    assert ran.code != 0
    assert "is a head" in ran.err
    assert f"heads:model={head}" in ran.err
