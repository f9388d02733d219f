"""What `server_peers.py` measured, as figures and as a page of Markdown tables. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from server_client import Answer
from server_common import figure, percentile, table

OFF, AUTO, PEER_OFF = "foredraft off", "foredraft auto", "peer off"
ALL = "all"
RATES = ("decode", "whole")


def is_ours(side: str) -> bool:
    """Whether a side is Foredraft: in any installation, with speculation or without."""
    return side != PEER_OFF and side.endswith((" off", " auto"))


@dataclass(frozen=True, slots=True)
class Turn:
    """A group of prompts that one side answered at once."""

    side: str
    number: int
    category: str
    prompts: tuple[str, ...]
    answers: tuple[Answer, ...]

    def rate(self, kind: str) -> float | None:
        """Tokens a second of the whole group: "decode" from its first token on, "whole" from the request on.

        None where an answer failed or is too short to have a rate.
        """
        if any(answer.error or answer.decode_rate is None for answer in self.answers):
            return None
        tokens = sum(answer.tokens for answer in self.answers)
        end = max(answer.arrivals[-1][0] for answer in self.answers)
        if kind == "whole":
            return tokens / (end - min(answer.sent for answer in self.answers))
        return (tokens - len(self.answers)) / (end - min(answer.arrivals[0][0] for answer in self.answers))

    def row(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "side": self.side,
            "pass": self.number,
            "prompts": self.prompts,
            "tokens": [answer.tokens for answer in self.answers],
            "first_ms": [answer.first_ms for answer in self.answers],
            **{kind: self.rate(kind) for kind in RATES},
        }


def best_rates(turns: Iterable[Turn], kind: str) -> dict[tuple[str, tuple[str, ...]], dict[str, float]]:
    """By category and group of prompts the best rate of each side. Groups that some side has no rate for are
    left out.
    """
    best: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
    sides: set[str] = set()
    for turn in turns:
        sides.add(turn.side)
        of_group = best.setdefault((turn.category, turn.prompts), {})
        of_group[turn.side] = max(turn.rate(kind) or 0.0, of_group.get(turn.side, 0.0))
    return {key: rates for key, rates in best.items() if set(rates) == sides and all(rates.values())}


def summaries(turns: Mapping[int, Sequence[Turn]]) -> list[dict[str, Any]]:
    """A row for each level, kind of rate, category and side: the geometric mean over its groups, and its
    ratio to the peer without speculation and to the peer's best setting in that category.
    """
    rows = []
    for clients, some in turns.items():
        for kind in RATES:
            best = best_rates(some, kind)
            categories = list(dict.fromkeys(category for category, _ in best))
            for category in [*categories, ALL] if categories else []:
                chosen = [rates for (name, _), rates in best.items() if category in (name, ALL)]
                rows += _category(clients, kind, category, chosen)
    return rows


def _category(
    clients: int, kind: str, category: str, chosen: Sequence[Mapping[str, float]]
) -> list[dict[str, Any]]:
    means = {side: geometric_mean([rates[side] for rates in chosen]) for side in chosen[0]}
    peers = {side: mean for side, mean in means.items() if not is_ours(side)}
    best_peer = max(peers, key=lambda side: peers[side]) if peers else None
    return [
        {
            "clients": clients,
            "rate": kind,
            "category": category,
            "groups": len(chosen),
            "side": side,
            "tokens_per_second": mean,
            "best_peer": best_peer,
            "of_best_peer": mean / peers[best_peer] if best_peer else None,
            "of_peer_off": mean / peers[PEER_OFF] if PEER_OFF in peers else None,
            "of_own_off": mean / own if (own := means.get(_own_off(side))) else None,
        }
        for side, mean in means.items()
    ]


def _own_off(side: str) -> str:
    return f"{side.removesuffix(' auto').removesuffix(' off')} off" if is_ours(side) else PEER_OFF


def texts(turns: Mapping[int, Sequence[Turn]]) -> list[dict[str, Any]]:
    """A row for each level and side: how many texts differ from its own off's in the same pass, and from what
    it wrote at the smallest level; the median time to the first token.
    """
    rows = []
    written = {level: _written(some) for level, some in turns.items()}
    least = written[min(written)]
    for clients, found in written.items():
        for side in dict.fromkeys(side for side, _, _ in found):
            mine = {
                (number, prompt): answer for (name, number, prompt), answer in found.items() if name == side
            }
            first = [answer.first_ms for answer in mine.values() if answer.first_ms is not None]
            rows.append(
                {
                    "clients": clients,
                    "side": side,
                    "texts": len(mine),
                    "tokens": sum(answer.tokens for answer in mine.values()),
                    "different": _different(mine, found, _own_off(side)),
                    "different_from_alone": _different(mine, least, side),
                    "first_ms": percentile(first, 50),
                }
            )
    return rows


Written = Mapping[tuple[str, int, str], Answer]


def _written(turns: Iterable[Turn]) -> Written:
    return {
        (turn.side, turn.number, prompt): answer
        for turn in turns
        for prompt, answer in zip(turn.prompts, turn.answers, strict=True)
    }


def _different(mine: Mapping[tuple[int, str], Answer], found: Written, other: str) -> int:
    return sum(
        (other, *key) in found and found[(other, *key)].text != answer.text for key, answer in mine.items()
    )


def as_markdown(
    found: Sequence[Mapping[str, Any]],
    compared: Sequence[Mapping[str, Any]],
    setting: str,
    spinning: Sequence[str],
) -> str:
    """The page: rates by category, then texts and times to the first token."""
    stopped = ", ".join(spinning)
    parts = [
        "# Foredraft's server beside llama.cpp's",
        f"Greedy answers; {setting}. Rates are tokens a second, geometric means over prompts; prefix caching "
        "is on everywhere, and no process sees a prompt twice."
        + (f" Stopped while others answer, as they would take time then: {stopped}." if stopped else ""),
    ]
    for clients in dict.fromkeys(row["clients"] for row in found):
        for kind in RATES:
            rows = [row for row in found if row["clients"] == clients and row["rate"] == kind]
            parts += [f"## {clients} at a time, {_NAMES[kind]}", _rate_table(rows)] if rows else []
    parts += ["## Texts, and the time to the first token", _text_table(compared)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


_NAMES = {"decode": "after the first token", "whole": "whole requests"}


def _rate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    sides = list(dict.fromkeys(row["side"] for row in rows))
    head = [
        "category",
        "groups",
        *sides,
        "auto ÷ best peer",
        "auto ÷ peer off",
        "auto ÷ off",
        "off ÷ peer off",
    ]
    lines = []
    for category in dict.fromkeys(row["category"] for row in rows):
        of = {row["side"]: row for row in rows if row["category"] == category}
        auto, off = of[AUTO], of[OFF]
        ratios = (auto["of_best_peer"], auto["of_peer_off"], auto["of_own_off"], off["of_peer_off"])
        lines.append([
            category, str(auto["groups"]), *(figure(of[side]["tokens_per_second"]) for side in sides),
            f"{figure(ratios[0], 2)} ({auto['best_peer']})", *(figure(ratio, 2) for ratio in ratios[1:]),
        ])  # fmt: skip
    return table(head, lines)


def _text_table(rows: Iterable[Mapping[str, Any]]) -> str:
    head = [
        "at a time",
        "side",
        "texts",
        "tokens",
        "not its own off's",
        "not its own alone",
        "first token, ms",
    ]
    lines = []
    for row in rows:
        counts = (row[name] for name in ("texts", "tokens", "different", "different_from_alone"))
        lines.append([str(row["clients"]), row["side"], *map(str, counts), figure(row["first_ms"])])
    return table(head, lines)
