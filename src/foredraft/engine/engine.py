"""The engine: requests in, events out. One thread, one model, any number of requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Unpack

from foredraft.config import AUTO, Speculation, as_speculation
from foredraft.engine.commit import exactness
from foredraft.engine.decisions import Decisions
from foredraft.engine.drafting import Drafters
from foredraft.engine.images import check_rows, unseen, with_rows
from foredraft.engine.loading import Kept, load_parts
from foredraft.engine.options import EngineOptions
from foredraft.engine.prompt import Prompt, check_tokens, encode_prediction, encode_prompt
from foredraft.engine.request import Request, check_scheduling, make_request
from foredraft.engine.round import RoundRunner
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.scoring import Scores, scores_of, with_scores
from foredraft.engine.speculation import Assembler, Setup, WarmUp
from foredraft.engine.stats import AdapterStats, PlainRound
from foredraft.engine.streams import EventStream, Streams, fold
from foredraft.engine.thinking import is_chat, thinking_of
from foredraft.errors import ForedraftError, HostLostError, OutOfKVError, RequestError, quoted
from foredraft.planner import StaticPlanner
from foredraft.protocols import Drafter, Model, Planner, RequestView, scope_with
from foredraft.registry import check_speculation
from foredraft.sampling.params import sampling_params, validate_params
from foredraft.types import Completion, Event, FinishEvent, FinishReason, SamplingOptions, SamplingParams

NOT_DRAFTING = "no drafter is configured"


class Engine:
    """Generates text from one model, with speculative decoding.

    Made with `Engine.load` for a model file, or directly around any `Model` and `Drafter` objects. `clock`
    gives seconds, for the planner and deadlines. `max_waiting`: the most requests that may wait for a place;
    None for any number. `on_start` is called with every request that gets a place and how many tokens of its
    prompt were cached, `on_finish` with every one that ends; they must not raise. Not thread-safe. A context
    manager: leaving it frees the model.
    """

    def __init__(
        self,
        model: Model,
        *,
        drafters: Sequence[Drafter] = (),
        planner: Planner | None = None,
        configured: str = "custom",
        clock: Callable[[], float] = perf_counter,
        max_waiting: int | None = None,
    ) -> None:
        self.model = model
        self.max_waiting = max_waiting
        self.on_start: Callable[[RequestView, int], None] | None = None
        self.on_finish: Callable[[RequestView, FinishEvent], None] | None = None
        self._clock = clock
        self._scheduler = Scheduler(model)
        asked = Drafters(
            drafters,
            model.info.vocab_size,
            trees=model.capabilities.trees,
            parameters=model.info.parameters,
            placeholder=-1 if model.vision is None else model.vision.placeholder,
            clock=clock,
        )
        self._runner = RoundRunner(
            model,
            self._scheduler,
            Setup(asked, planner or StaticPlanner(), configured, None if drafters else NOT_DRAFTING),
            clock,
        )
        self._streams = Streams(self._round, self._endings, self._abort, self._is_open)
        self._warm_up = WarmUp(model, self._scheduler.cache, clock)
        self._keep(Kept())
        self._next_id = 1
        self._by_adapter: dict[str, AdapterStats] = {}
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        speculate: str | Speculation = AUTO,
        **options: Unpack[EngineOptions],
    ) -> Engine:
        """Load a model.

        `model` is a GGUF file, a folder of safetensors, the name of a pulled model, or None for the default
        model. `speculate` is a speculation string: "auto", "off", or drafters such as
        "ngram-simple:n=8;draft-model:model=m.gguf". Raises ConfigError, ModelError, CapacityError,
        MissingDependencyError.
        """
        [engine] = cls.load_together(model, [speculate], **options)
        return engine

    @classmethod
    def load_together(
        cls,
        model: str | Path | None,
        speculations: Sequence[str | Speculation],
        **options: Unpack[EngineOptions],
    ) -> list[Engine]:
        """Load one engine for each speculation setting, all on one model: the weights are loaded once and
        shared, so that the engines differ by their settings alone. Each has its own `sequences`.

        The model is freed with the last of them. Takes and raises what `load` does.
        """
        settings = [as_speculation(speculate) for speculate in speculations]
        for speculation in settings:
            check_speculation(speculation)
        parts, loading, unwatched = load_parts(model, settings, options)
        engines = [cls(part) for part in parts]
        with ExitStack() as loaded:
            for engine in engines:
                loaded.enter_context(engine)
            for engine, speculation in zip(engines, settings, strict=True):
                engine._keep(Kept.of(engine.model, loading, unwatched))
                engine.set_speculation(speculation)
            loaded.pop_all()
        return engines

    def _keep(self, kept: Kept) -> None:
        self._kept = kept
        self._scheduler.usual_adapter = self._warm_up.adapter = kept.adapter
        self._warm_up.store, self._warm_up.notice = kept.planner_store, kept.options.notice
        self._scheduler.cache.disk = kept.disk

    def set_speculation(self, speculate: str | Speculation) -> None:
        """Change what drafts from the next request on. The model and its KV cache stay as they are, and so
        does what it was loaded with: a head that reads something else cannot draft, and a note says so.

        Takes what `load` takes as `speculate`. Raises SpeculationStringError, and RequestError while requests
        are waiting or running; the old setting then stays in force. Its head or draft model is closed before
        another is loaded, and loaded again if the setting stays.
        """
        speculation = as_speculation(speculate)
        check_speculation(speculation)
        self._check_open()
        if not self.idle:
            raise RequestError(
                "Speculation cannot be changed while a request is running.",
                hint="Wait until the engine is idle, or abort its requests.",
            )
        old, kept = self._runner.setup, self._kept
        assembler = Assembler(self.model, kept.store, kept.options, kept.unwatched, self._clock)
        try:
            with self._seeing_losses():
                setup = assembler.assemble(speculation, old)
            self._warm_up.end(old.planner)
            if setup.drafters:
                try:
                    self._warm_up.begin(setup.planner)
                except BaseException:
                    setup.drafters.close()
                    raise
        except BaseException:
            self._runner.setup = assembler.put_back(old)
            raise
        old.drafters.close()
        self._runner.setup = setup

    # --- requests --------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        scope: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        max_draft: int | None = None,
        adapter: str | None = None,
    ) -> int:
        """Queue a request; returns its id. Raises RequestError, ContextLengthError, QueueFullError.

        `prediction` is text the answer is expected to contain. `scope` separates users: nothing remembered
        from one scope is used in another. Waiting requests of a higher `priority` run first. A request that
        is not answered `deadline_s` seconds from now ends with reason "abort" and an `error`. At most
        `max_draft` tokens are drafted in a round for this request: 0 switches drafting off for it. `adapter`:
        the LoRA adapter to compute it with, "" for none; None is that of the engine's options.
        """
        self._check_open()
        check_scheduling(priority, deadline_s, max_draft)
        self._scheduler.check_queue(self.max_waiting)
        params = validate_params(SamplingParams() if params is None else params, self.model.info.vocab_size)
        tokens, images = encode_prompt(self.model.tokenizer, prompt, self.model.vision)
        check_tokens(tokens, self.model.info)
        if params.thinking is None and is_chat(prompt):
            params = replace(params, thinking=thinking_of(self.model.tokenizer, tokens))
        check_rows(images, self.model.vision, self.model.capabilities)
        if self.model.vision is not None:
            prepared = {key: self.model.vision.prepare(image) for key, image in unseen(images).items()}
            images = with_rows(images, prepared)
        expected = encode_prediction(self.model.tokenizer, prediction, self.model.info)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        tokens = list(tokens)  # the history grows
        name = self._kept.adapter if adapter is None else adapter
        scope = scope_with(scope, self._adapter_key(name))
        view = RequestView(self._next_id, tokens, params, seed, len(tokens), scope, expected, images, name)
        self._next_id += 1
        request = make_request(
            view,
            self.model.tokenizer,
            context_length=self.model.info.context_length,
            vocab_size=self.model.info.vocab_size,
        )
        request.priority = priority
        if max_draft is not None:
            request.max_draft = max_draft
        request.deadline = None if deadline_s is None else self._clock() + deadline_s
        self._scheduler.enqueue(request)
        return view.id

    def _adapter_key(self, name: str) -> str:
        """Its key, "" for none. Raises RequestError."""
        known = self.model.adapters
        if name and name not in known:
            raise RequestError(
                f"There is no adapter {quoted(name)}.",
                hint=f"Loaded are: {', '.join(known)}." if known else "The model was loaded without any.",
            )
        return known[name] if name else ""

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, as `add` would run it; of images the placeholders of their rows. Raises
        RequestError.
        """
        self._check_open()
        return encode_prompt(self.model.tokenizer, prompt, self.model.vision).tokens

    def abort(self, request_id: int) -> list[Event]:
        """Stop a request now and free its place.

        Returns its last events, those that `step` has not returned yet; none if the request is not known. A
        stream that follows the request gets them instead.
        """
        self._streams.deliver(self._abort(request_id))
        return self._streams.claim(request_id)

    def stop(self, request_id: int, notice: str) -> list[Event]:
        """End a request now with the text it has: its reason is "stopped", and `notice` says why.

        Returns what `abort` does.
        """
        request = self._scheduler.find(request_id)
        if request is not None:
            request.stop(notice)
        return self.abort(request_id)

    def _abort(self, request_id: int) -> list[Event]:
        request = self._scheduler.find(request_id)
        if request is None or self._closed:
            return []
        request.finish = request.finish or FinishReason.ABORT
        return [self._finish(request)]

    def _is_open(self, request_id: int) -> bool:
        return not self._closed and self._scheduler.find(request_id) is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: what to expect of the model as loaded; drafters left out or failed, and why."""
        return (*self.model.info.notes, *self.setup.all_notes())

    @property
    def planner(self) -> Planner:
        """What decides about drafts at the moment."""
        return self._runner.setup.planner

    @property
    def decisions(self) -> Decisions:
        """What was decided in the last rounds, to be read or watched, and what each drafter did."""
        return self._runner.decisions

    @property
    def setup(self) -> Setup:
        """What speculation runs on at the moment."""
        return self._runner.setup

    def plain_round(self, requests: int) -> PlainRound | None:
        """How long plain rounds of `requests` requests took lately; None before two were seen."""
        return self._runner.plain_rounds.of(requests)

    @property
    def by_adapter(self) -> Mapping[str, AdapterStats]:
        """What was drafted for the requests of each adapter that are over; "" is the model alone. Empty if
        the model has none.
        """
        return dict(self._by_adapter) if self.model.adapters else {}

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        self._streams.settle()
        return self._scheduler.idle

    @property
    def waiting_count(self) -> int:
        """Requests without a place: new ones, and those that were preempted."""
        return len(self._scheduler.waiting)

    @property
    def running_count(self) -> int:
        """Requests that have a place."""
        return len(self._scheduler.running)

    @property
    def running_ids(self) -> frozenset[int]:
        """The requests that have a place."""
        return frozenset(request.id for request in self._scheduler.running)

    @property
    def drafting_ids(self) -> frozenset[int]:
        """Those of them whose drafting is not switched off."""
        return frozenset(request.id for request in self._scheduler.running if request.max_draft)

    @property
    def kv_tokens(self) -> int:
        """Tokens that running requests hold in the KV cache, without what ended ones have left."""
        return sum(request.computed for request in self._scheduler.running)

    @property
    def kept_tokens(self) -> int:
        """Tokens that ended requests have left in the KV cache, to be reused."""
        return self._scheduler.cache.kept_tokens

    @property
    def kv_capacity(self) -> int:
        """Tokens that the KV cache can hold: of all sequences together."""
        return self.model.capabilities.sequences * self.model.info.context_length

    @property
    def preemptions(self) -> int:
        """How often a request was preempted because the KV cache was full, since the engine was made."""
        return self._scheduler.preemptions

    @property
    def lost(self) -> bool:
        """Whether a machine that computes a part of the model is gone: it has to be loaded again."""
        return self._runner.lost

    # --- stepping --------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one round for all requests; returns the events of those that no stream follows.

        A failure of the backend ends the requests that it affects with reason "error"; it is not raised.
        """
        self._streams.advance()
        return self._streams.take_unclaimed()

    @contextmanager
    def _seeing_losses(self) -> Iterator[None]:
        """Know of a lost machine also where its error is raised outside a forward."""
        try:
            yield
        except HostLostError:
            self._runner.lost = True
            raise

    def _round(self) -> list[Event]:
        with self._seeing_losses():
            return self._round_of_all()

    def _round_of_all(self) -> list[Event]:
        self._check_open()
        self._streams.deliver([self._finish(request) for request in self._scheduler.expire(self._clock())])
        self._scheduler.admit(self._start)
        self._scheduler.repair()
        if len(self._scheduler.ended()) < len(self._scheduler.running):
            try:
                return self._runner.run()
            except OutOfKVError as error:
                self._scheduler.make_room(error)
            except ForedraftError as error:
                self._runner.lost |= isinstance(error, HostLostError)
                for request in self._scheduler.running:
                    request.fail(str(error))
        return []

    def _endings(self) -> list[Event]:
        """The last events of requests that ended in a round."""
        with self._seeing_losses():
            return [self._finish(request) for request in self._scheduler.ended()]

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("This engine is closed.", hint="Load it again with Engine.load.")

    def _start(self, request: Request) -> None:
        setup = self._runner.setup
        setup.planner.start(request.view, setup.drafters.proposers())  # first: it cannot be interrupted long
        setup.drafters.start(request.view)
        if self.on_start is not None:
            self.on_start(request.view, request.cached)

    def _finish(self, request: Request) -> FinishEvent:
        request.finished_at = request.finished_at or perf_counter()
        setup = self._runner.setup
        if request.admitted_at:
            setup.drafters.stop(request.view)
            setup.planner.stop(request.view)
        whole = request.finish is not FinishReason.ERROR and request.notice is None
        self._scheduler.remove(request, keep=whole and request.view.kept)
        event = self._finish_event(request)
        self._by_adapter.setdefault(request.view.adapter, AdapterStats()).add(request.stats)
        self._scheduler.cache.observe(event.timings)
        if self.on_finish is not None:
            self.on_finish(request.view, event)
        return event

    def _finish_event(self, request: Request) -> FinishEvent:
        assert request.finish is not None
        setup = self._runner.setup
        speculation = request.stats.summary(
            configured=setup.configured,
            reason=setup.why_not(request, self._runner.decisions.reason()),
            exact=exactness(request, self.model.capabilities),
            notes=setup.all_notes(),
        )
        return FinishEvent(
            request.id,
            request.finish,
            request.text.flush(),
            request.usage(),
            request.timings(),
            speculation,
            request.error,
            request.notice,
        )

    # --- conveniences ----------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        scope: str = "",
        adapter: str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> EventStream:
        """Generate, yielding a TokenEvent for every token and a FinishEvent at the end.

        Sampling is given as `params`, or as keywords of SamplingParams. Several streams may be read in
        turns; closing one early aborts its request. Raises RequestError, ContextLengthError at once.
        """
        chosen = sampling_params(params, sampling)
        return self._follow(self.add(prompt, chosen, prediction=prediction, scope=scope, adapter=adapter))

    def _follow(self, request_id: int) -> EventStream:
        request = self._scheduler.find(request_id)
        return self._streams.follow(request_id, generated=request.generated if request else 0)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        scope: str = "",
        adapter: str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """Generate and return the whole answer: the fold of `stream`."""
        with self.stream(
            prompt, params, prediction=prediction, scope=scope, adapter=adapter, **sampling
        ) as events:
            return fold(events)

    def score(
        self, prompt: Prompt, *, logprobs: int = 0, scope: str = "", adapter: str | None = None
    ) -> Scores:
        """Log-probabilities of the prompt's own tokens, each after those before it, with `logprobs`
        alternatives to each. Nothing is generated.

        Raises RequestError, ContextLengthError, and BackendError where they could not be computed.
        """
        tokens = self.encode(prompt)
        params = with_scores(SamplingParams(logprobs=logprobs), score_prompt=True, answers=False)
        with self.stream(prompt, params, scope=scope, adapter=adapter) as events:
            return scores_of(tokens, events)

    def run(self, requests: Iterable[int]) -> list[Completion]:
        """Run until the given requests are finished; returns their completions in order.

        Raises RequestError for one that is not known; the others are then as they were.
        """
        wanted = list(requests)
        for request in wanted:
            if not self._streams.knows(request):
                raise RequestError(f"There is no request {request} in this engine.")
        with ExitStack() as stack:
            streams = [stack.enter_context(self._follow(request)) for request in wanted]
            return [fold(stream) for stream in streams]

    def close(self) -> None:
        """Save what is remembered and free the model. May be called twice."""
        if self._closed:
            return
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            self.abort(request.id)
        self._closed = True
        self._warm_up.end(self._runner.setup.planner)
        self._scheduler.cache.close()
        self._runner.setup.drafters.close()
        self.model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
