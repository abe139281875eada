"""DSPy's models over the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import Any

from msgspec import structs

import ferrule
from ferrule import settings as core
from ferrule.compat.dspy.errors import under_dspys_names
from ferrule.compat.dspy.settings import openai_body, outputs_of
from ferrule.compat.dspy.values import tokens_of
from ferrule.concurrency.offload import in_worker_thread
from ferrule.models.wires.any_answer import response_of
from ferrule.models.wires.openai_chat.read_request import read_request
from ferrule.values.conversation.exchange import exchanges

_WITHOUT_EFFECT = {
    "callbacks",
    "engine",
    "finetuning_model",
    "launch_kwargs",
    "provider",
    "train_kwargs",
    "use_developer_role",
}


def without_rollout(settings):
    """Settings without DSPy's `rollout_id`, whose only effect was on its cache."""
    return {name: value for name, value in settings.items() if name != "rollout_id"}


class _Asked:
    """A request that passes through methods which a subclass overrides."""

    def __init__(self, lm: Any, request: ferrule.Request | None) -> None:
        self.lm = lm
        self.request = request
        """None if a user called the model, and no run."""
        self.response: ferrule.Response | None = None
        """The latest answer: it has what a list of outputs lacks, such as the usage."""

    @cached_property
    def body(self) -> dict[str, Any]:
        """The request as arguments of `lm(...)`."""
        body = openai_body(self.request)
        del body["model"]
        if "tools" in body:
            body.setdefault("tool_choice", "auto")  # the default, which DSPy writes out
        return body

    def request_with(self, prompt: Any, messages: Any, settings: dict[str, Any]) -> ferrule.Request:
        """The request that a subclass passes on: with its own messages and settings."""
        if messages is None:
            messages = [{"role": "user", "content": prompt}]
        passed_on = read_request({**settings, "messages": messages})
        if self.request is None:
            return passed_on
        if messages == self.body["messages"]:
            # The core's messages also have what OpenAI's form cannot hold.
            passed_on = passed_on.following(self.request.messages)
        return structs.replace(passed_on, form=self.request.form, secrets=self.request.secrets)

    def response_of(self, outputs: Any) -> ferrule.Response:
        """The answer behind the outputs that `lm(...)` returned."""
        if not isinstance(outputs, list | tuple):
            return response_of(outputs)
        if self.response is not None and [*outputs] == outputs_of(self.response):
            return self.response
        response = response_of({"choices": [{"message": _message(output)} for output in outputs]})
        if self.response is None:
            return response
        return structs.replace(response, usage=self.response.usage, cost=self.response.cost)


def _message(output: Any) -> dict[str, Any]:
    """One output of DSPy's models as a message in OpenAI's form."""
    if not isinstance(output, dict):
        return {"role": "assistant", "content": output}
    more = {name: value for name, value in output.items() if name != "text"}
    return {"role": "assistant", "content": output.get("text"), **more}


_ASKED = "asked of a DSPy model"
"""The setting in `extra` that carries the `_Asked`, also to worker threads."""


@contextmanager
def _passing(asked: _Asked) -> Any:
    """A block in which a request passes through the methods of its model."""
    with ferrule.context(extra={**core.setting("extra"), _ASKED: asked}):
        yield asked


class _SupportedFeatures:
    """The capabilities of a model without its own: what `supports_function_calling` says.

    Not a property, because a model may set its own.
    """

    def __get__(self, lm: Any, owner: Any) -> ferrule.Capabilities:
        return ferrule.Capabilities(native_tools=getattr(lm, "supports_function_calling", False))


class BaseLM(ferrule.BaseLM):
    """Base class of DSPy's models, and of your own.

    Write `forward(prompt, messages, **kwargs)`, which answers in OpenAI's form, or `__call__`,
    which returns a list of outputs, and `aforward` or `acall` if you like. Each request goes to the
    outermost of them that the subclass overrides; `super()` leads to the next one.
    """

    model_type = "chat"
    cache = True
    """Without effect: ferrule has no cache."""
    capabilities: Any = _SupportedFeatures()
    supports_function_calling: Any = False
    supports_reasoning: Any = False
    supports_response_schema: Any = False
    supported_params: Any = frozenset()
    inspect_history = staticmethod(ferrule.inspect_history)

    def __init__(
        self, model, model_type="chat", temperature=None, max_tokens=None, cache=True, **more
    ):
        self.name, self.model_type, self.cache = model, model_type, cache
        settings = {"temperature": temperature, "max_tokens": max_tokens, **more}
        self.settings = {name: value for name, value in settings.items() if value is not None}

    @property
    def model(self):
        return self.name

    @property
    def kwargs(self):
        return dict(self.settings)

    def dump_state(self):
        return {"model": self.name, "model_type": self.model_type, **self.kwargs}

    @property
    def history(self) -> list[dict[str, Any]]:
        """The model's calls among the last 100 of the process."""
        entries = []
        for lm, request, response in exchanges:
            if lm is not self or not isinstance(response, ferrule.Response):
                continue
            entries.append(
                {
                    **openai_body(request),
                    "prompt": None,
                    "model": self.name,
                    "model_type": self.model_type,
                    "kwargs": {**self.kwargs, **request.settings},
                    "response": response,
                    "outputs": outputs_of(response),
                    "usage": tokens_of(response.usage),
                    "cost": response.cost,
                }
            )
        return entries

    # -- what users call, and subclasses override

    def __call__(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            asked = self._passing_request()
            if asked is not None and asked.request is not None:
                asked.response = self._answer(asked.request_with(prompt, messages, settings))
                return outputs_of(asked.response)
            with _passing(_Asked(self, None)):
                return outputs_of(self.respond(prompt, messages=messages, **settings))

    async def acall(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            asked = self._passing_request()
            if asked is not None and asked.request is not None:
                request = asked.request_with(prompt, messages, settings)
                asked.response = await self._aanswer(request)
                return outputs_of(asked.response)
            with _passing(_Asked(self, None)):
                return outputs_of(await self.arespond(prompt, messages=messages, **settings))

    def forward(self, prompt=None, messages=None, **kwargs):
        asked = self._passing_request() or _Asked(self, None)
        return super().complete(asked.request_with(prompt, messages, kwargs))

    async def aforward(self, prompt=None, messages=None, **kwargs):
        asked = self._passing_request() or _Asked(self, None)
        return await super().acomplete(asked.request_with(prompt, messages, kwargs))

    # -- what runs call

    def complete(self, request):
        if self._passing_request() is None and self._overrides("__call__"):
            with _passing(_Asked(self, request)) as asked:
                return asked.response_of(self(**asked.body))
        return self._answer(request)

    async def acomplete(self, request):
        if self._passing_request() is None and self._overrides("acall"):
            with _passing(_Asked(self, request)) as asked:
                return asked.response_of(await self.acall(**asked.body))
        if self._passing_request() is None and self._overrides("__call__"):
            return await in_worker_thread(lambda: self.complete(request))
        return await self._aanswer(request)

    def stream(self, request):
        if self._overrides("__call__", "forward"):
            return ferrule.BaseLM.stream(self, request)
        return super().stream(request)

    def astream(self, request):
        if self._overrides("acall", "__call__", "aforward", "forward"):
            return ferrule.BaseLM.astream(self, request)
        return super().astream(request)

    def _answer(self, request: ferrule.Request) -> ferrule.Response:
        if self._overrides("forward"):
            with _passing(_Asked(self, request)):
                return response_of(self.forward(**openai_body(request, self)))
        return super().complete(request)

    async def _aanswer(self, request: ferrule.Request) -> ferrule.Response:
        if self._overrides("aforward"):
            with _passing(_Asked(self, request)):
                return response_of(await self.aforward(**openai_body(request, self)))
        if self._overrides("forward"):
            return await in_worker_thread(lambda: self._answer(request))
        return await super().acomplete(request)

    def _passing_request(self) -> _Asked | None:
        asked = core.setting("extra").get(_ASKED)
        if asked is None or asked.lm is not self:
            return None
        return asked

    def _overrides(self, *names: str) -> bool:
        return any(getattr(type(self), name) is not getattr(BaseLM, name) for name in names)


class LM(BaseLM, ferrule.LM):
    def __init__(
        self,
        model: str,
        model_type: str = "chat",
        num_retries: int = 3,
        api_base: str | None = None,
        cache: bool = True,
        **more: Any,
    ) -> None:
        options = {
            name: value
            for name, value in without_rollout(more).items()
            if value is not None and name not in _WITHOUT_EFFECT
        }
        if "timeout" in options:
            options["timeout_s"] = options.pop("timeout")
        if model_type == "responses":
            options["wire"] = "openai_responses"
        if api_base and "ollama" in model:
            options["base_url"] = f"{api_base}/v1"
        elif api_base:
            options["base_url"] = api_base
        name = model.replace("ollama_chat/", "ollama/")
        ferrule.LM.__init__(self, name, max_retries=num_retries, **options)
        self.model_type, self.cache = model_type, cache

    @property
    def supports_function_calling(self):
        return self.capabilities.native_tools

    @property
    def supports_response_schema(self):
        return self.capabilities.json_schema


class DummyLM(BaseLM, ferrule.testing.ScriptedLM):
    """Answers from a list, from a mapping by a part of the last message, or as the demos do."""

    def __init__(self, answers, follow_examples=False, reasoning=False, adapter=None):
        ferrule.testing.ScriptedLM.__init__(self, by=self._scripted)
        self.name = "dummy"
        self.answers = answers
        if isinstance(answers, list):
            self.answers = iter(answers)
        self.adapter = adapter
        self.follow_examples = follow_examples
        self.reasoning = "Some reasoning" if reasoning else None

    def _scripted(self, request: ferrule.Request) -> ferrule.Response:
        answer = self._fields_for(request)
        if isinstance(answer, dict):
            answer = self._written(answer, request.form)
        usage = ferrule.Usage(calls=1)
        return ferrule.Response(answer, reasoning=self.reasoning, model=self.name, usage=usage)

    def _written(self, fields: dict[str, Any], form: Any) -> str:
        """Fields as the text of an answer: in the form that the request asks for, if they fit."""
        names = {}
        if form is not None:
            names = form.schema.get("properties", {})
        if self.adapter is None and form is not None and fields.keys() <= names.keys():
            return form.write(fields)
        signature = ferrule.Signature(dict.fromkeys(fields, ferrule.OutputField()))
        adapter = self.adapter or ferrule.ChatAdapter()
        return adapter.format_assistant_message_content(signature, fields)

    def _fields_for(self, request: ferrule.Request) -> Any:
        """The answer whose question stands in the last message: a dict of fields, or a text."""
        question, *earlier = [message.text for message in reversed(request.messages)]
        if self.follow_examples:
            known = zip(earlier[1::2], earlier[::2], strict=False)
        elif isinstance(self.answers, dict):
            known = self.answers.items()
        else:
            known = [("", next(self.answers, {"answer": "No more responses"}))]
        for part, answer in known:
            if part in question or part.startswith(question.split("\n\n")[0]):
                return answer
        return "No more responses"
