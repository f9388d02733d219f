"""What a reader must know of a comparison with another server: texts and prompts that are other ones."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.bench.results import Row, Sample


def server_notes(rows: Sequence[Row], server: str, baseline: str) -> list[str]:
    """Notes on the side `server`. With several passes the first one counts."""
    by_prompt: dict[str, dict[str, Sample]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, {}).setdefault(row.setting, row.sample)
    pairs = {
        prompt: (answers[server], answers[baseline])
        for prompt, answers in by_prompt.items()
        if server in answers and baseline in answers
    }
    notes = []
    different = sum(not theirs.same_as(ours) for theirs, ours in pairs.values())
    if different:
        notes.append(
            f"{server}: {different} of {len(pairs)} texts are not those of {baseline}. Another program's "
            "arithmetic and random numbers are its own, and one token that differs changes all after it. "
            "That is no error of either."
        )
    longer = [
        f"{prompt} has {theirs.prompt_tokens} tokens there and {ours.prompt_tokens} here"
        for prompt, (theirs, ours) in pairs.items()
        if theirs.prompt_tokens and theirs.prompt_tokens != ours.prompt_tokens
    ]
    if longer:
        notes.append(
            f"{server}: its prompts are not the same ({longer[0]}). Is it the same model and chat template? "
            "If not, the rates cannot be compared."
        )
    return notes
