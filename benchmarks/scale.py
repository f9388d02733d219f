"""Many replicas behind one address: what does it matter which replica gets a request?

A simulation in virtual time. Each replica is the engine itself around a model that answers as recorded and
takes as long as a cost curve says (`foredraft.bench.replay_model`), with prompts charged by the token.
Clients hold conversations: each begins with one of a few long system prompts, and each question comes some
seconds after the answer before it, with all that was said until then. Conversations begin at random moments
(Poisson), as many for each replica however many there are.

Three routers choose among replicas:

- `random`
- `least`: the one with the fewest requests
- `prefix`: the one that was last sent the longest beginning of the prompt, unless it has a few requests more
  than the least busy one, or no free sequence while another has one; the least busy one for a prompt with a
  new beginning. This is what runs in front of replicas (`foredraft.scale.routing.RoutingTable`), but for
  blocks of `BLOCK` tokens, not of text. With `--fronts` there are several tables, each of which routes its
  share of the requests.

What is shown: the share of prompt tokens that came from a prefix cache, tokens a second of all replicas and
of each, time to the first token, and tokens a round.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from common import parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.replay import usable_traces
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.trace import Trace, TraceSet, shipped_traces
from foredraft.config import AUTO
from foredraft.scale.routing import RoutingTable
from foredraft.types import FinishEvent, Logits, Rows, TokenEvent

BLOCK = 32
"""Tokens of a prompt that a router knows as one."""

SYSTEM_TOKENS = (400, 3000)
TURNS = 5
"""On average, of a conversation."""

THINKING_S = 15.0
"""On average, between an answer and the next question."""

PREFILL_ROWS = 64
"""The size of forward whose cost for each row is what a prompt's token costs."""


def main() -> None:
    """Run the simulation; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    arguments.add_argument("--routers", nargs="+", choices=list(ROUTERS), default=list(ROUTERS))
    arguments.add_argument("--curve", default="gpu", help="a cost curve that ships, or a file of one")
    arguments.add_argument("--sequences", type=int, default=8, help="of each replica")
    arguments.add_argument("--conversations", type=int, default=24, help="for each replica")
    arguments.add_argument("--every", type=float, default=6.0, help="seconds between two, for each replica")
    arguments.add_argument("--speculate", default=AUTO)
    arguments.add_argument(
        "--applications", type=int, default=24, help="system prompts, the n-th used 1/n as often"
    )
    arguments.add_argument("--fronts", type=int, default=1, help="each with a table of its own")
    arguments.add_argument("--seeds", type=int, default=2)
    args = arguments.parse_args()
    rows: list[dict[str, object]] = []
    runs = [(count, name) for count in args.replicas for name in args.routers]
    print("replicas  router  cached  tokens/s  each  first token: median s  p99 s  tokens a round")
    for number, (count, name) in enumerate(runs, 1):
        began = time.perf_counter()
        results = [simulate(args, count, name, seed) for seed in range(args.seeds)]
        row = {"replicas": count, "router": name, **summary(results, count)}
        rows.append(row)
        print("  ".join(str(value) for value in row.values()), flush=True)
        progress(number, len(runs), f"{count} replicas, {name}: {time.perf_counter() - began:.0f} s")
    print(json.dumps(rows))


# --- what is asked -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Conversation:
    """`turns`: one recorded request after the other; each prompt holds everything before it."""

    turns: Sequence[Trace]
    thinking_s: Sequence[float]
    begins_s: float


def conversations(seed: int, count: int, every_s: float, applications: int) -> list[Conversation]:
    """`count` conversations that begin every `every_s` seconds on average, each with one of `applications`
    system prompts, which are used unevenly: the n-th with a weight of 1/n (Zipf).
    """
    rng = random.Random(seed)
    recorded = usable_traces(shipped_traces())
    words = [token for trace in recorded for token in trace.prompt + trace.output]
    systems = []
    for _ in range(applications):
        at, length = rng.randrange(len(words) // 2), rng.randint(*SYSTEM_TOKENS)
        systems.append(tuple((words[at:] + words)[:length]))
    weights = [1 / n for n in range(1, applications + 1)]
    made, now = [], 0.0
    for number in range(count):
        now += rng.expovariate(1 / every_s)
        said = (*rng.choices(systems, weights)[0], *recorded[number % len(recorded)].prompt[:1])
        turns = []
        for turn in range(1 + int(rng.expovariate(1 / (TURNS - 1)))):
            trace = rng.choice(recorded)
            prompt = said + trace.prompt
            turns.append(Trace(f"{number}.{turn}", trace.category, prompt, trace.output))
            said = prompt + trace.output
        waits = [rng.expovariate(1 / THINKING_S) for _ in turns]
        made.append(Conversation(turns, waits, now))
    return made


# --- a replica -----------------------------------------------------------------------------------------


class TimedModel(ReplayModel):
    """Also takes time for prompts: `prompt_s` seconds for each token."""

    prompt_s = 0.0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        # All rows of an answer return logits; of a prompt at most the last one does.
        read = sum(len(rows.tokens) for rows in batch if rows.logits < len(rows.tokens))
        self.seconds += self.prompt_s * read
        return super().forward(batch)


@dataclass(slots=True)
class Asked:
    """A request on a replica."""

    conversation: Conversation
    turn: int
    came_s: float


@dataclass(slots=True)
class Figures:
    """What one simulation found of the requests that came in the second half of the time in which
    conversations began, and how long that half was: before it, caches fill and the load rises.
    """

    begins_s: float
    ends_s: float
    first_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    rounds: int = 0

    def counts(self, asked: Asked) -> bool:
        return self.begins_s <= asked.came_s < self.ends_s

    def add(self, end: FinishEvent) -> None:
        self.prompt += end.usage.prompt_tokens
        self.cached += end.usage.cached_tokens
        self.tokens += end.usage.completion_tokens
        self.rounds += end.speculation.rounds


class Replica:
    """An engine in virtual time."""

    def __init__(self, traces: TraceSet, curve: Curve, args: Namespace) -> None:
        self.model = TimedModel(traces, curve, sequences=args.sequences, ragged=True)
        self.model.prompt_s = curve.v1_ms * curve.ratio(PREFILL_ROWS) / PREFILL_ROWS / 1e3
        self.engine = Engine(self.model, clock=self.model.clock)
        self.engine.set_speculation(args.speculate)
        charge(self.engine, self.model, choosing=args.speculate == AUTO)
        self.asked: dict[int, Asked] = {}

    def add(self, asked: Asked, now: float) -> None:
        if self.engine.idle:
            self.model.seconds = max(self.model.seconds, now)
        trace = asked.conversation.turns[asked.turn]
        params = SamplingParams(max_tokens=len(trace.output), temperature=0, ignore_eos=True)
        self.asked[self.engine.add(list(trace.prompt), params)] = asked

    def step(self, figures: Figures, waiting: set[int]) -> list[Asked]:
        """A round; returns the requests that it finished."""
        done = []
        for event in self.engine.step():
            asked = self.asked[event.request]
            if isinstance(event, TokenEvent) and id(asked) in waiting:
                waiting.remove(id(asked))
                if figures.counts(asked):
                    figures.first_s.append(self.model.seconds - asked.came_s)
            if isinstance(event, FinishEvent):
                done.append(self.asked.pop(event.request))
                if figures.counts(asked):
                    figures.add(event)
        return done


# --- routers -------------------------------------------------------------------------------------------


class Router:
    """Chooses a replica by `name`. It knows how many requests each has, and each front what it sent where."""

    def __init__(self, name: str, replicas: Sequence[Replica], args: Namespace, seed: int) -> None:
        self._choose = ROUTERS[name]
        self.replicas = replicas
        self.rng = random.Random(seed)
        self._tables = [RoutingTable(sequences=args.sequences) for _ in range(args.fronts)]

    def choose(self, prompt: Sequence[int]) -> Replica:
        return self.replicas[self._choose(self, self.rng.choice(self._tables), prompt)]

    def loads(self) -> dict[str, int]:
        return {str(number): len(replica.asked) for number, replica in enumerate(self.replicas)}


def beginnings(prompt: Sequence[int]) -> list[int]:
    """A hash of each beginning that ends with a whole block."""
    found, value = [], 0
    for at in range(BLOCK, len(prompt) + 1, BLOCK):
        value = hash((value, *prompt[at - BLOCK : at]))
        found.append(value)
    return found


def by_chance(router: Router, table: RoutingTable, prompt: Sequence[int]) -> int:  # noqa: ARG001
    return router.rng.randrange(len(router.replicas))


def by_load(router: Router, table: RoutingTable, prompt: Sequence[int]) -> int:  # noqa: ARG001
    return int(min(loads := router.loads(), key=lambda one: (loads[one], router.rng.random())))


def by_prefix(router: Router, table: RoutingTable, prompt: Sequence[int]) -> int:
    begins = beginnings(prompt)
    chosen = table.choose(begins, router.loads())
    table.sent(begins, chosen)
    return int(chosen)


ROUTERS: dict[str, Callable[[Router, RoutingTable, Sequence[int]], int]] = {
    "random": by_chance,
    "least": by_load,
    "prefix": by_prefix,
}


# --- the simulation ------------------------------------------------------------------------------------


def simulate(args: Namespace, count: int, router_name: str, seed: int) -> Figures:
    """`count` replicas until all conversations are over. The first event is always the next one: an arrival,
    or the round of the replica whose clock is furthest behind.
    """
    talks = conversations(seed, args.conversations * count, args.every / count, args.applications)
    recorded = shipped_traces()
    everything = TraceSet(
        recorded.model, recorded.vocab_size, "", (), [turn for talk in talks for turn in talk.turns]
    )
    replicas = [Replica(everything, find_curve(args.curve), args) for _ in range(count)]
    router = Router(router_name, replicas, args, seed)
    last = talks[-1].begins_s
    figures, waiting, order = Figures(last / 2, last), set[int](), iter(range(1 << 40))
    arrivals = [(talk.begins_s, next(order), Asked(talk, 0, talk.begins_s)) for talk in talks]
    heapq.heapify(arrivals)
    while True:
        busy = [replica for replica in replicas if not replica.engine.idle]
        behind = min(busy, key=lambda replica: replica.model.seconds, default=None)
        now = arrivals[0][0] if arrivals else float("inf")
        if min(now, behind.model.seconds if behind else now) >= last:
            break
        if arrivals and (behind is None or arrivals[0][0] <= behind.model.seconds):
            now, _, asked = heapq.heappop(arrivals)
            waiting.add(id(asked))
            router.choose(asked.conversation.turns[asked.turn].prompt).add(asked, now)
        elif behind is None:
            break
        else:
            for asked in behind.step(figures, waiting):
                talk, turn = asked.conversation, asked.turn + 1
                if turn < len(talk.turns):
                    at = behind.model.seconds + talk.thinking_s[turn]
                    heapq.heappush(arrivals, (at, next(order), Asked(talk, turn, at)))
    for replica in replicas:
        replica.engine.close()
    return figures


def summary(results: Sequence[Figures], count: int) -> dict[str, float]:
    """The mean over the seeds; times to the first token of all together."""
    first = sorted(second for result in results for second in result.first_s)
    rate = fmean(result.tokens / (result.ends_s - result.begins_s) for result in results)
    return {
        "cached": round(sum(one.cached for one in results) / sum(one.prompt for one in results), 3),
        "tokens_s": round(rate, 1),
        "each": round(rate / count, 1),
        "first_median_s": round(first[len(first) // 2], 3),
        "first_p99_s": round(first[int(0.99 * (len(first) - 1))], 3),
        "tokens_a_round": round(sum(one.tokens for one in results) / sum(one.rounds for one in results), 3),
    }


if __name__ == "__main__":
    run_benchmark(main)
