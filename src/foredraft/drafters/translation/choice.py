"""Whether and how drafts of a model can be translated, and what to tell the user about it."""

from __future__ import annotations

from foredraft.drafters.translation.pieces import gives_text_back
from foredraft.drafters.translation.twin import ALIKE, Languages
from foredraft.errors import UnsupportedModelError
from foredraft.protocols import DrafterContext, Model

WAYS = ("auto", "slem", "tli", "off")
"""The values of the option `translate`."""


def compare(model: Model, context: DrafterContext, way: str) -> Languages:
    """The target's and the draft model's tokenizers. Raises UnsupportedModelError where drafts cannot be
    translated, or are not to be.
    """
    differ = f"The vocabularies of {model.info.name} and {context.target.name} differ"
    if way == "off":
        raise UnsupportedModelError(
            f"{differ}, and translation is off.",
            hint="Leave out translate=off, or use a draft model with the target's tokenizer.",
        )
    for tokenizer, owner in (
        (model.tokenizer, model.info.name),
        (context.tokenizer, context.target.name),
    ):
        if not gives_text_back(tokenizer):
            raise UnsupportedModelError(
                f"{differ}, and drafts cannot be translated: the tokenizer of {owner} does not give back "
                "the text it is given.",
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
    """The note for the user: that drafts are translated, and how."""
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
