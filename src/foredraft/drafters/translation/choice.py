"""Decides whether and how drafts of a model are translated, and describes it for the user."""

from __future__ import annotations

from foredraft.drafters.translation.pieces import gives_text_back
from foredraft.drafters.translation.twin import ALIKE, Languages
from foredraft.errors import UnsupportedModelError
from foredraft.protocols import DrafterContext, Model

WAYS = ("auto", "slem", "tli", "off")
"""Values of the option `translate`."""


def compare(model: Model, context: DrafterContext, way: str) -> Languages:
    """Pair the target's and the draft model's tokenizers. Raises UnsupportedModelError if drafts cannot be
    translated, or translation is off.
    """
    differ = f"The vocabularies of {model.info.name} and {context.target.name} differ"
    if way == "off":
        raise UnsupportedModelError(
            f"{differ}, and translation is off.",
            hint="Remove translate=off, or use a draft model with the target's tokenizer.",
        )
    for tokenizer, owner in (
        (model.tokenizer, model.info.name),
        (context.tokenizer, context.target.name),
    ):
        if not gives_text_back(tokenizer):
            raise UnsupportedModelError(
                f"{differ}, and drafts cannot be translated: the tokenizer of {owner} does not reproduce "
                "its input text.",
                hint="Use a draft model with the target's tokenizer, such as a smaller one of its family.",
            )
    languages = Languages.of(context.tokenizer, model.tokenizer)
    if way == "tli" and not languages.pair.shared:
        raise UnsupportedModelError(
            f"{differ}: they share no token, so translate=tli has nothing to draft.",
            hint="Use translate=slem or translate=auto.",
        )
    return languages


def describe(model: Model, context: DrafterContext, languages: Languages, way: str) -> str:
    """The note for the user about how drafts are translated."""
    ways = {
        "slem": "as text (SLEM)",
        "tli": "by shared tokens (TLI)",
        "auto": (
            f"by shared tokens (TLI) where {ALIKE:.0%} of the recent text is cut alike, else as text (SLEM)"
        ),
    }
    return (
        f"drafts of {model.info.name} are translated, {ways[way]}: its vocabulary has "
        f"{languages.pair.share:.0%} of the tokens of {context.target.name}"
    )
