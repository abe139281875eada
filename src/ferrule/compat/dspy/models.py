"""DSPy's models over the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import ferrule
from ferrule.compat.dspy.errors import under_dspys_names
from ferrule.compat.dspy.settings import openai_body, outputs_of
from ferrule.compat.dspy.values import tokens_of
from ferrule.models.wires.any_answer import response_of
from ferrule.values.conversation.exchange import exchanges

_WITHOUT_EFFECT = {
    "cache",
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


class _DSPyModel(ferrule.BaseLM):
    """DSPy's behaviour of models: `lm(...)` returns a list of outputs.

    `history` has the model's calls among the last 100 of the process.
    """

    model_type = "chat"
    inspect_history = staticmethod(ferrule.inspect_history)

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

    def __call__(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            return outputs_of(self.respond(prompt, messages=messages, **settings))

    async def acall(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            return outputs_of(await self.arespond(prompt, messages=messages, **settings))


class LM(_DSPyModel, ferrule.LM):
    def __init__(
        self,
        model: str,
        model_type: str = "chat",
        num_retries: int = 3,
        api_base: str | None = None,
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
        super().__init__(name, max_retries=num_retries, **options)
        self.model_type = model_type


class BaseLM(_DSPyModel):
    """Base class of your own models.

    Write `forward(prompt, messages, **kwargs)`, which answers in OpenAI's form.
    """

    capabilities = ferrule.Capabilities(native_tools=False)

    def __init__(
        self, model, model_type="chat", temperature=None, max_tokens=None, cache=None, **more
    ):
        self.name, self.model_type = model, model_type
        settings = {"temperature": temperature, "max_tokens": max_tokens, **more}
        self.settings = {name: value for name, value in settings.items() if value is not None}

    async def aforward(self, prompt=None, messages=None, **kwargs):
        return self.forward(prompt, messages, **kwargs)

    def complete(self, request):
        return response_of(self.forward(**openai_body(request, self)))

    async def acomplete(self, request):
        return response_of(await self.aforward(**openai_body(request, self)))


class DummyLM(_DSPyModel, ferrule.testing.ScriptedLM):
    """Answers from a list, from a mapping by a part of the last message, or as the demos do."""

    def __init__(self, answers, follow_examples=False, reasoning=False, adapter=None):
        capabilities = ferrule.Capabilities(native_tools=False)
        ferrule.testing.ScriptedLM.__init__(self, by=self._answer, capabilities=capabilities)
        self.name = "dummy"
        self.answers = answers
        if isinstance(answers, list):
            self.answers = iter(answers)
        self.adapter = adapter
        self.follow_examples = follow_examples
        self.reasoning = "Some reasoning" if reasoning else None

    def _answer(self, request: ferrule.Request) -> ferrule.Response:
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
