"""Callers who are not the admin read names of files, and no folders."""

from __future__ import annotations

import pytest

from foredraft.server.told import names_of_paths, without_paths


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/my models/m.gguf is truncated.", "m.gguf is truncated."),
        ("There is no file /srv/a/gone.gguf.\nTry another.", "There is no file gone.gguf.\nTry another."),
        ("draft-model:model=/srv/a/d.gguf,max=4", "draft-model:model=d.gguf,max=4"),
        (r"C:\models\m.gguf is no model.", "m.gguf is no model."),
        (
            "/srv/a/foredraft.toml, [models.m]: /srv/m.gguf is gone",
            "foredraft.toml, [models.m]: m.gguf is gone",
        ),
        ("~/models/m.gguf: it is read-only.", "m.gguf: it is read-only."),
        ("'/srv/a/m.gguf'", "'m.gguf'"),
        ("There is no POST /v1/chat here. There is /v1/chat/completions: is the base URL right?", None),
        ("50 tokens/s; see https://example.org/a/b, or docs/server.md", None),
        ("a / b and and/or", None),
    ],
)
def test_folders_are_left_out(text: str, told: str | None) -> None:
    assert names_of_paths(text) == (text if told is None else told)


def test_texts_of_a_whole_value() -> None:
    value = {"notes": ("/a/b is no file.",), "count": 3, "inner": [{"name": "/a/c"}], "none": None}
    assert without_paths(value) == {
        "notes": ["b is no file."],
        "count": 3,
        "inner": [{"name": "c"}],
        "none": None,
    }
