"""DSPy's streams over the core's events."""

# pyright: basic
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any, NamedTuple

import ferrule
from ferrule.compat.dspy.errors import under_dspys_names
from ferrule.compat.dspy.settings import BaseCallback, Observer


class StatusMessage(NamedTuple):
    message: str


class StreamResponse(NamedTuple):
    predict_name: str
    signature_field_name: str
    chunk: str
    is_last_chunk: bool


class StreamListener(NamedTuple):
    signature_field_name: str
    predict: Any = None
    predict_name: str | None = None
    allow_reuse: bool = False


class StatusMessageProvider:
    """Override its methods; None sends no message."""

    def tool_start_status_message(self, instance, inputs):
        return f"Calling tool {instance.name}..."

    def tool_end_status_message(self, outputs):
        return "Tool calling finished! Querying the LLM with tool calling results..."

    def lm_start_status_message(self, instance, inputs):
        return None

    def lm_end_status_message(self, outputs):
        return None

    def module_start_status_message(self, instance, inputs):
        return None

    def module_end_status_message(self, outputs):
        return None


class _StatusCallback(BaseCallback):
    """A callback that collects the provider's messages."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider or StatusMessageProvider()
        self.messages: list[Any] = []

    def __getattr__(self, hook: str) -> Any:
        message = getattr(self.provider, f"{hook.removeprefix('on_')}_status_message")

        def collect(*, call_id, exception=None, **arguments):
            self.messages.append(message(*arguments.values()))

        return collect


class _Chunks:
    """Converts the events of a run to the items of DSPy's stream.

    The last piece of a field is marked, so each piece is held until the next event says whether it
    was the last.
    """

    def __init__(self, program: Any, listeners: Any, provider: Any) -> None:
        self.status = _StatusCallback(provider)
        self.observer = Observer(self.status)
        self.programs: dict[str, Any] = {}
        """The programs that have begun, by their path."""
        self.held: list[StreamResponse] = []
        """The last piece, or none."""
        self.extracts = False
        """Whether the model writes the outputs of `ReAct`, after its steps."""
        self.may_be_preamble = False
        """Whether calls may still follow the text of this answer."""
        self.text: list[Any] = []
        """That text. A piece that was sent cannot be taken back, so it waits."""
        self.listened = [_predictor_of(listener, program) for listener in listeners]
        """For each listener: its field, its predictor, and the name to send."""

    def __call__(self, event: ferrule.Event) -> list[Any]:
        self.observer(event)
        items: list[Any] = [StatusMessage(text) for text in self.status.messages if text]
        self.status.messages = []
        match event:
            case ferrule.events.RunStarted():
                self.programs[event.path] = event.program
            case ferrule.events.ModelCalled(request=request):
                form = request.form
                names = {}
                if form is not None:
                    names = form.schema.get("properties", {})
                self.extracts = "reasoning" in names
                self.may_be_preamble = bool(self.listened) and len(request.tools) > 0
            case ferrule.events.ModelAnswered():
                items += self._settle_text()
                items += self._release(is_last=True)
            case ferrule.events.FieldDelta() if self.may_be_preamble:
                self.text.append(event)
            case ferrule.events.Preamble(call_id=call_id, text=text):
                self.text = []
                thought = ferrule.events.ThoughtDelta(call_id, text, path=event.path)
                if text and self.listened:
                    items += self._pieces(thought)
            case ferrule.events.CallDelta():
                items += self._settle_text()
            case (
                ferrule.events.FieldDelta()
                | ferrule.events.ThoughtDelta()
                | ferrule.events.TextDelta()
            ):
                if self.listened:
                    items += self._pieces(event)
                else:
                    items.append(event)
            case _:
                pass
        return items

    def _settle_text(self) -> list[Any]:
        """Send the text that waited: it is an output."""
        self.may_be_preamble = False
        text, self.text = self.text, []
        return [item for piece in text for item in self._pieces(piece)]

    def _pieces(self, event: Any) -> list[Any]:
        """The items for a piece of text: the piece that was held, if a listener wants this one."""
        # The innermost program began last.
        around = [program for path, program in self.programs.items() if event.path.startswith(path)]
        program = around[-1]
        written_field = getattr(event, "field", None)
        if isinstance(event, ferrule.events.ThoughtDelta):
            written_field = "reasoning"
            if isinstance(program, ferrule.ReAct) and not self.extracts:
                written_field = "next_thought"
        items: list[Any] = []
        for field, predictor, name in self.listened:
            is_of_program = any(predictor is known for known in program.predictors())
            if field != written_field or not is_of_program:
                continue
            begins_field = bool(self.held) and self.held[0][:2] != (name, field)
            items += self._release(is_last=begins_field)
            self.held = [StreamResponse(name, field, event.text, is_last_chunk=False)]
        return items

    def _release(self, *, is_last: bool) -> list[Any]:
        held, self.held = self.held, []
        return [piece._replace(is_last_chunk=is_last) for piece in held]


def _predictor_of(listener: Any, program: Any) -> tuple[str, Any, str]:
    field, wanted, name, _ = listener
    predictors = []
    for path, predictor in program.named_predictors():
        if wanted:
            is_wanted = predictor is wanted
        else:
            is_wanted = field in {*predictor.signature.output_fields, "next_thought"}
        if is_wanted:
            predictors.append((path, predictor))
    if len(predictors) != 1:
        raise ValueError(
            f"Signature field {field} is not unique in the program: "
            f"{len(predictors)} predictors have it."
        )
    [(path, predictor)] = predictors
    return field, predictor, name or path


def streamify(
    program, status_message_provider=None, stream_listeners=(), async_streaming=True, **options
):
    """A function that returns a generator.

    It yields pieces of the fields listened to, status messages, and finally the prediction.
    """
    with_prediction = not stream_listeners or options.get(
        "include_final_prediction_in_output_stream", True
    )

    # `run` and `arun` are plain functions, so that the program is called at once, not at the first
    # chunk: it has the settings of this call.
    def run(*args, **inputs):
        return chunks_of(program.stream(*args, **inputs))

    def chunks_of(stream):
        chunks = _Chunks(program, stream_listeners, status_message_provider)
        with under_dspys_names():
            for event in stream:
                yield from chunks(event)
            if with_prediction:
                yield stream.prediction

    def arun(*args, **inputs):
        return achunks_of(program.astream(*args, **inputs))

    async def achunks_of(stream):
        chunks = _Chunks(program, stream_listeners, status_message_provider)
        with under_dspys_names():
            async for event in stream:
                for item in chunks(event):
                    yield item
            if with_prediction:
                yield stream.prediction

    if async_streaming:
        return arun
    return run
