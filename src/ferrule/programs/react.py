"""`ReAct`: think, call a tool, see what came of it, until the outputs are known.  (Floor 5.)

The class alone stands here, and loads what it is made of when an agent is made: naming it must stay cheap (performance, F2). How it works
is in `react_loop.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.programs.module import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.runs.limits import Limits
    from ferrule.tools.tool import Tool
    from ferrule.values.act import Flow
    from ferrule.values.outcome import Trajectory
    from ferrule.values.signature import Signature


class ReAct(Module):
    """An agent over tools. Returns the signature's outputs, typed, with `.trajectory` beside them.

    `finish` and `user_clarification` are built in (`enable_user_clarification=False` leaves the second out). `native=None` uses native
    tool calls where the model can, else the text protocol; both give the same prediction. A call takes `max_iters=`, `lm=` and `config=`
    beside the inputs. Tool failures and the model's slips become observations; `TooManyFaults` is raised after `limits.same_error` slips
    in a row. At `max_iters` an answer is extracted from what is there, and `prediction.reason` says so.
    """

    def __init__(
        self,
        signature: type[Signature] | str,
        tools: Iterable[Tool | Callable[..., Any]],
        max_iters: int = 20,
        *,
        native: bool | None = None,
        limits: Limits | None = None,
        enable_user_clarification: bool = True,
    ) -> None:
        from ferrule.programs.predict import ChainOfThought, Predict
        from ferrule.programs.react_loop import checked_iters, checked_signature, extracting, toolboxes
        from ferrule.runs.limits import Limits

        self.signature = checked_signature(signature)
        self.max_iters = checked_iters(max_iters)
        self.native = native
        self.limits = limits or Limits()
        self.toolbox, self.native_toolbox = toolboxes(self.signature, tools, clarification=enable_user_clarification)
        self.react = Predict(self.signature)
        self.extract = ChainOfThought(extracting(self.signature))

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name, the built-in ones included."""
        return {tool.name: tool for tool in self.toolbox}

    def flow(self, **inputs: Any) -> Flow:
        """See the class."""
        from ferrule.programs.react_loop import carry

        return carry(self, inputs)

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """What to show of a trajectory that no longer fits the model's window: all but the oldest step. Override it to keep summaries."""
        return type(trajectory)(trajectory.steps[1:])
