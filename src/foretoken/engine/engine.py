"""The engine: requests in, events out. One thread, one model, any number of requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Unpack

from foretoken.config import AUTO, ModelOptions, Speculation, parse_speculation
from foretoken.engine.assembly import assemble
from foretoken.engine.drafting import Drafters
from foretoken.engine.fold import fold
from foretoken.engine.options import EngineOptions, SamplingOptions, model_options
from foretoken.engine.prompt import Prompt, check_tokens, encode_prompt, sampling_params
from foretoken.engine.request import Request, make_request
from foretoken.engine.round import RoundRunner
from foretoken.engine.scheduler import Scheduler
from foretoken.engine.streams import EventStream, Streams
from foretoken.engine.warmup import measure_costs
from foretoken.errors import CapacityError, ForetokenError, RequestError
from foretoken.library import models_dir, resolve
from foretoken.planner.fixed import FixedPlanner
from foretoken.protocols import Drafter, Model, Planner, RequestView
from foretoken.registry import backend_for, check_speculation
from foretoken.sampling.validation import validate_params
from foretoken.types import Completion, Event, FinishEvent, FinishReason, Round, SamplingParams

NOT_DRAFTING = "no drafter is configured"


class Engine:
    """Generates text from one model, with speculative decoding.

    Made with `Engine.load` for a model file, or directly around any `Model` and `Drafter` objects. Not
    thread-safe. A context manager: leaving it frees the model.
    """

    def __init__(
        self,
        model: Model,
        *,
        drafters: Sequence[Drafter] = (),
        planner: Planner | None = None,
        configured: str = "custom",
        reason: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.model = model
        self._drafters = Drafters(drafters, model.info.vocab_size)
        self._planner: Planner = planner or FixedPlanner()
        self._scheduler = Scheduler(model)
        self._runner = RoundRunner(model, self._scheduler, self._drafters, self._planner)
        self._configured = configured
        self._reason = reason or (None if drafters else NOT_DRAFTING)
        self._notes = tuple(notes)
        self._store: Path | None = None
        self._settings = ModelOptions()
        self._costs: list[Round] | None = None
        self._streams = Streams(self._round, self.abort)
        self._next_id = 1
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        speculate: str | Speculation = AUTO,
        **options: Unpack[EngineOptions],
    ) -> Engine:
        """Load a model and get ready to generate.

        `model` is a file, the name of a pulled model, or None for the default model. `speculate` is a
        speculation string: "auto", "off", or drafters such as "ngram-simple:n=8;draft-model:model=m.gguf".
        Raises ConfigError, ModelError, CapacityError, MissingDependencyError.
        """
        speculation = parse_speculation(speculate) if isinstance(speculate, str) else speculate
        check_speculation(speculation)
        settings, cache_dir, remember = model_options(options)
        path = resolve(None if model is None else str(model), models_dir(cache_dir))
        loaded = backend_for(path).load(path, settings)
        try:
            return cls._assemble(loaded, speculation, cache_dir if remember else None, settings)
        except BaseException:
            loaded.close()
            raise

    @classmethod
    def _assemble(
        cls, model: Model, speculation: Speculation, cache_dir: Path | None, settings: ModelOptions
    ) -> Engine:
        store = cache_dir / "store" if cache_dir else None
        parts = assemble(model, speculation, store=store, options=settings)
        engine = cls(
            model,
            drafters=parts.drafters,
            planner=parts.planner,
            configured=str(speculation),
            reason=parts.reason,
            notes=parts.notes,
        )
        engine._store, engine._settings = store, settings
        engine._teach_costs(speculation)
        return engine

    def _teach_costs(self, speculation: Speculation) -> None:
        """Give a planner that decides by cost the measured time of forwards; they are measured once."""
        if not speculation.adaptive or not self._drafters:
            return
        if self._costs is None:
            place = self._scheduler.cache.acquire([0])
            assert place is not None, "only called while no request is running"
            self._costs = measure_costs(self.model, place[0])
            self._scheduler.cache.drop(place[0])
        for measured in self._costs:
            self._planner.observe(measured)

    def set_speculation(self, speculate: str | Speculation) -> None:
        """Draft with something else from the next request on. The model and its KV cache stay as they are.

        Takes what `load` takes as `speculate`. Raises SpeculationStringError, and RequestError while requests
        are waiting or running; the old setting then stays in force.
        """
        speculation = parse_speculation(speculate) if isinstance(speculate, str) else speculate
        check_speculation(speculation)
        if not self.idle:
            raise RequestError(
                "Speculation cannot be changed while a request is running.",
                hint="Wait until the engine is idle, or abort its requests.",
            )
        parts = assemble(self.model, speculation, store=self._store, options=self._settings)
        self._drafters.close()
        self._drafters = Drafters(parts.drafters, self.model.info.vocab_size)
        self._planner = parts.planner
        plain_rounds = self._runner.plain_rounds
        self._runner = RoundRunner(self.model, self._scheduler, self._drafters, self._planner)
        self._runner.plain_rounds = plain_rounds  # the same model: the yardstick of a speedup stays
        self._configured, self._reason, self._notes = str(speculation), parts.reason, parts.notes
        self._teach_costs(speculation)

    # --- requests --------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        scope: str = "",
    ) -> int:
        """Queue a request; returns its id. Raises RequestError, ContextLengthError.

        `prediction` is text the answer is expected to contain. `scope` separates users: nothing remembered
        from one scope is used in another.
        """
        self._check_open()
        params = params or SamplingParams()
        validate_params(params, self.model.info.vocab_size)
        tokens = self.encode(prompt)
        check_tokens(tokens, self.model.info)
        expected = self._encode_text(prediction) if isinstance(prediction, str) else list(prediction)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        view = RequestView(self._next_id, tokens, params, seed, len(tokens), scope, tuple(expected))
        self._next_id += 1
        self._scheduler.waiting.append(
            make_request(
                view,
                self.model.tokenizer,
                context_length=self.model.info.context_length,
                vocab_size=self.model.info.vocab_size,
            )
        )
        return view.id

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, as `add` would run it. Raises RequestError."""
        return encode_prompt(self.model.tokenizer, prompt)

    def _encode_text(self, text: str) -> list[int]:
        return self.model.tokenizer.encode(text) if text else []

    def abort(self, request_id: int) -> list[Event]:
        """Stop a request now and free its place. Returns its finish event; nothing if it is not known."""
        request = self._scheduler.find(request_id)
        if request is None:
            return []
        request.finish = FinishReason.ABORT
        return [self._finish(request)]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: drafters that were left out or failed, and why."""
        return (*self._notes, *self._drafters.notes)

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return self._scheduler.idle

    # --- stepping --------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one round for all requests; returns the events of those that no stream follows.

        A failure of the backend ends the requests it happened to with reason "error"; it is not raised.
        """
        self._streams.advance()
        return self._streams.take_unclaimed()

    def _round(self) -> list[Event]:
        self._check_open()
        self._scheduler.admit(self._start)
        if not self._scheduler.running:
            return []
        try:
            events = self._runner.run()
        except ForetokenError as error:
            return self._fail(error)
        for request in [request for request in self._scheduler.running if request.finish is not None]:
            events.append(self._finish(request))
        return events

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("This engine is closed.", hint="Load it again with Engine.load.")

    def _start(self, request: Request) -> None:
        self._drafters.start(request.view)
        self._planner.start(request.view)

    def _fail(self, error: ForetokenError) -> list[Event]:
        """End what the failed forward was for. Out of KV: the youngest request makes room for the others."""
        victims = list(self._scheduler.running)
        if isinstance(error, CapacityError):
            victims = victims[-1:]
        for request in victims:
            request.finish, request.error = FinishReason.ERROR, str(error)
        return [self._finish(request) for request in victims]

    def _finish(self, request: Request) -> FinishEvent:
        assert request.finish is not None
        request.finished_at = perf_counter()
        if request.seq >= 0:
            self._drafters.stop(request.view)
            self._planner.stop(request.view)
        self._scheduler.remove(request, keep=request.finish is not FinishReason.ERROR)
        timings = request.timings()
        capabilities = self.model.capabilities
        exact = capabilities.batch_invariant and request.params.verify == "match"
        note = capabilities.invariance_note
        if request.params.verify != "match" and request.params.temperature > 0:
            note = f"verify={request.params.verify} keeps the distribution, not the bytes"
        reason = self._reason or (self._planner.reason() if not request.stats.drafted else None)
        return FinishEvent(
            request.id,
            request.finish,
            request.text.flush(),
            request.usage(),
            timings,
            request.stats.summary(
                configured=self._configured,
                reason=reason,
                plain_ms=self._runner.plain_rounds.ms,
                decode_ms=timings.predicted_ms,
                exact=(exact, note),
                notes=self.notes,
            ),
            request.error,
        )

    # --- conveniences ----------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        **sampling: Unpack[SamplingOptions],
    ) -> EventStream:
        """Generate, yielding a TokenEvent for every token and a FinishEvent at the end.

        Sampling is given as `params`, or as keywords of SamplingParams. Several streams may be read in
        turns; closing one early aborts its request. Raises RequestError, ContextLengthError at once.
        """
        request_id = self.add(prompt, sampling_params(params, sampling), prediction=prediction)
        return self._follow(request_id)

    def _follow(self, request_id: int) -> EventStream:
        return self._streams.follow(request_id, is_open=lambda key: self._scheduler.find(key) is not None)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        prediction: str | Sequence[int] = "",
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """Generate and return the whole answer: the fold of `stream`."""
        return fold(self.stream(prompt, params, prediction=prediction, **sampling))

    def run(self, requests: Iterable[int]) -> list[Completion]:
        """Run until the given requests are finished; returns their completions in order."""
        streams = [self._follow(request) for request in requests]
        return [fold(stream) for stream in streams]

    def close(self) -> None:
        """Save what is remembered and free the model. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._drafters.close()
        self.model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
