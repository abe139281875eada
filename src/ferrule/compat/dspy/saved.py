"""The state of programs in DSPy's layout: written by the facade, and read from files of both.

A load has two halves: `read_states` reads everything and raises, and `take` changes the predictors
and cannot fail. So a state is loaded completely or not at all.

The predictor `react` of an agent is made from the agent's signature and its tools: its instructions
end in a text on how to take a step, and its outputs are those of a step. `_read_step` takes what is
the user's: the instructions before that text, and the descriptions of the inputs. DSPy's also has
the steps so far as an input `trajectory`, and demos that show single steps in this form: these have
no place here, and a warning says so.
"""

# pyright: basic
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ferrule.compat.dspy.models import LM
from ferrule.compat.dspy.values import Example
from ferrule.encoding.stored import reading
from ferrule.errors import ConfigurationError
from ferrule.programs.instructions import LOOP_BEGINS
from ferrule.programs.react_loop.step import StepPredict

_logger = logging.getLogger("ferrule.compat.dspy")
_ADDRESSES = ("api_base", "base_url", "model_list")
"""Settings of a saved model that say where requests go, and with them the key."""


class _StepForm(NamedTuple):
    """How DSPy or the facade writes the signature of `react`."""

    prefixes: tuple[str, ...]
    """The prefixes of the fields that are added to the inputs of the agent."""
    how_to: str
    """The beginning of the text on how to take a step, which is added to the instructions."""
    has_extractor: bool = True
    """Whether the agent has an extractor, too."""
    has_our_steps: bool = False
    """Whether a demo of a step has the form that it has here."""


_STEP = ("Next Thought:", "Next Tool Name:", "Next Tool Args:")
_STEP_FORMS = (
    _StepForm(("Trajectory:", *_STEP), "You are an Agent. In each episode, you will be given"),
    _StepForm(
        ("History:", "Tools:", "Next Thought:", "Tool Calls:"),
        "You are an Agent. Use the supplied tools to produce",
        has_extractor=False,
    ),
    _StepForm(_STEP, LOOP_BEGINS, has_our_steps=True),
    _StepForm((_STEP[0], "Next Intention:", *_STEP[1:]), LOOP_BEGINS, has_our_steps=True),
)
"""DSPy's `ReAct` and `ReActV2`, and the facade's agents without and with an intention."""


class Loaded(NamedTuple):
    """What a saved state says of one predictor."""

    predictor: Any
    signature: Any
    demos: list[Any]
    lm: Any

    def take(self) -> None:
        """Change the predictor."""
        self.predictor.signature = self.signature
        self.predictor.demos = self.demos
        self.predictor.lm = self.lm


def dump_predictor(predictor: Any) -> dict[str, Any]:
    """The state of one predictor."""
    fields = predictor.signature.plan.fields
    described = [_field_state(name, field) for name, field in fields.items()]
    lm = None
    if predictor.lm:
        lm = predictor.lm.dump_state()
    return {
        "traces": [],
        "train": [],
        "demos": [Example(demo).toDict() for demo in predictor.demos],
        "signature": {"instructions": predictor.signature.instructions, "fields": described},
        "lm": lm,
    }


def _field_state(name: str, field: Any) -> dict[str, Any]:
    return {
        "prefix": f"{name.replace('_', ' ').title()}:",
        "description": field.description or f"${{{name}}}",
    }


def read_states(
    predictors: list[tuple[str, Any]], state: dict[str, Any], *, with_addresses: bool
) -> list[Loaded]:
    """What a state says of the predictors of a program; nothing changes.

    Raises `ConfigurationError` if it is damaged, lacks a predictor, or belongs to other signatures.
    """
    loaded: list[Loaded] = []
    with reading("The state of a program", ConfigurationError):
        for name, predictor in predictors:
            if name in state:
                saved = read_predictor(predictor, state[name], with_addresses=with_addresses)
                loaded.append(saved)
            elif not _is_left_out(name, state):
                raise ConfigurationError(
                    f"The state belongs to another program: it has no predictor `{name}`; "
                    f"it has {[key for key in state if key != 'metadata']}."
                )
    return loaded


def _is_left_out(name: str, state: dict[str, Any]) -> bool:
    """Whether the predictor is the extractor of an agent that DSPy saved without one."""
    agent, _, predictor = name.rpartition("extract.predict")
    step = state.get(f"{agent}react")
    if predictor or step is None:
        return False
    form = _step_form(step["signature"]["fields"])
    return form is not None and not form.has_extractor


def read_predictor(predictor: Any, state: dict[str, Any], *, with_addresses: bool) -> Loaded:
    """What the state of one predictor says; nothing changes."""
    saved = state["signature"]
    demos = [Example(demo) for demo in state["demos"]]
    form = _step_form(saved["fields"])
    if form is not None and isinstance(predictor, StepPredict):
        signature = _read_step(predictor.program_signature, saved, form)
        if not form.has_our_steps:
            demos = _demos_of_task(demos, signature)
    else:
        signature = _read_signature(predictor.signature, saved)
    return Loaded(predictor, signature, demos, _read_model(state["lm"], with_addresses))


def _read_signature(signature: Any, saved: dict[str, Any]) -> Any:
    names = [*signature.fields]
    if len(names) != len(saved["fields"]):
        raise ConfigurationError(
            f"The state belongs to another signature than `{signature}`: "
            f"it has {len(saved['fields'])} fields."
        )
    fields = [
        {"name": name, "desc": _description(name, field)}
        for name, field in zip(names, saved["fields"], strict=True)
    ]
    return signature.load_state({"instructions": saved["instructions"], "fields": fields})


def _description(name: str, field: dict[str, Any]) -> str:
    # DSPy writes this placeholder for a field without a description.
    return field["description"].replace(f"${{{name}}}", "")


# -- agents


def _step_form(fields: list[dict[str, Any]]) -> _StepForm | None:
    """The form of the signature of a step; None for any other signature."""
    for form in _STEP_FORMS:
        added = fields[-len(form.prefixes) :]
        if form.prefixes == tuple(field["prefix"] for field in added):
            return form
    return None


def _read_step(program_signature: Any, saved: dict[str, Any], form: _StepForm) -> Any:
    """The agent's signature, as the signature of its steps describes it."""
    inputs = saved["fields"][: -len(form.prefixes)]
    names = [*program_signature.plan.inputs]
    if len(names) != len(inputs):
        raise ConfigurationError(
            f"The state belongs to an agent of another signature than `{program_signature}`: "
            f"it has {len(inputs)} inputs."
        )
    descriptions = {
        name: _description(name, field) for name, field in zip(names, inputs, strict=True)
    }
    fields = [
        {**field, "desc": descriptions.get(field["name"], field["desc"])}
        for field in program_signature.dump_state()["fields"]
    ]
    instructions, how_to, _ = saved["instructions"].partition(form.how_to)
    if not how_to:
        _logger.warning(
            "The saved instructions of `react` do not say how to take a step: an optimizer may "
            "have changed them. All of them become the agent's instructions, and ferrule adds how "
            "to take a step."
        )
    return program_signature.load_state({"instructions": instructions.rstrip(), "fields": fields})


def _demos_of_task(demos: list[Example], signature: Any) -> list[Example]:
    """The demos that show an output of the agent. Those of a step show DSPy's `trajectory`."""
    outputs = signature.plan.outputs
    of_task = [demo for demo in demos if any(name in demo for name in outputs)]
    left_out = len(demos) - len(of_task)
    if left_out:
        _logger.warning(
            "%d saved demos of `react` are left out: they show single steps in DSPy's form. Demos "
            "of the agent have its inputs and outputs.",
            left_out,
        )
    return of_task


# -- models


def _read_model(state: dict[str, Any] | None, with_addresses: bool) -> Any:
    """The saved model. As in DSPy, a file does not decide where a key is sent, unless asked to."""
    if not state:
        return None
    settings = {name: value for name, value in state.items() if not name.startswith("_dspy")}
    ignored = [name for name in _ADDRESSES if settings.get(name)]
    if ignored and not with_addresses:
        _logger.warning(
            "The saved model's %s are ignored. If you trust the file, load it with "
            "`allow_unsafe_lm_state=True` to use them.",
            ignored,
        )
        settings = {name: value for name, value in settings.items() if name not in _ADDRESSES}
    return LM(**settings)
