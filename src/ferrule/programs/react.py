"""`ReAct`: think, call a tool, see what came of it, until the outputs are known.

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
    from ferrule.tools.toolbox import Toolbox, ToolServer
    from ferrule.values.confirmation.policy import Policy
    from ferrule.values.run.act import Flow
    from ferrule.values.run.outcome import Trajectory
    from ferrule.values.signatures.signature import Signature


class ReAct(Module):
    """An agent over tools. Returns the signature's outputs, typed, with `.trajectory` beside them.

    `finish` and `user_clarification` are built in (`enable_user_clarification=False` leaves the second out). `native=None` uses native
    tool calls where the model can, else the text protocol; both give the same prediction. `intention=True` asks the model why it makes
    each call: the answer stands in `call.intention`, in steps, events and questions, and never reaches the tool. A call takes
    `max_iters=`, `limits=`, `lm=` and `config=` beside the inputs. Tool failures and the model's slips become observations;
    `TooManyFaultsError` is raised after `limits.same_error` slips in a row. `policy` says which calls run, which are asked about and which
    are denied. At `max_iters`, or where one of its `limits` is reached, an answer is extracted from what is there, and
    `prediction.reason` says why.
    """

    def __init__(
        self,
        signature: type[Signature] | str,
        tools: Iterable[Tool | Callable[..., Any] | ToolServer],
        max_iters: int = 20,
        *,
        native: bool | None = None,
        intention: bool = False,
        limits: Limits | None = None,
        enable_user_clarification: bool = True,
        policy: Policy | None = None,
    ) -> None:
        from ferrule.programs.asking.options import at_least_one
        from ferrule.programs.predict import Predict
        from ferrule.programs.react_loop.loop import checked_signature, checked_tools, extractor
        from ferrule.runs.limits import Limits

        found = checked_signature(signature)
        self.max_iters = at_least_one("max_iters", max_iters)
        self.native = native
        self.intention = intention
        self.limits = limits or Limits()
        self.enable_user_clarification = enable_user_clarification
        self.policy = policy
        # Signature and tools are the predictor's: so they are saved, loaded, and changed in one place.
        self.react = Predict(found, tools=checked_tools(tools, intention=intention))
        self.extract = extractor(found)

    @property
    def signature(self) -> type[Signature]:
        """What goes in and what comes out."""
        return self.react.signature

    @property
    def toolbox(self) -> Toolbox:
        """The tools as text mode offers them, the built-in ones included."""
        from ferrule.programs.react_loop.loop import with_builtin

        return with_builtin(self.react.signature, self.react.toolbox, clarification=self.enable_user_clarification, native=False)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name, the built-in ones included."""
        return {tool.name: tool for tool in self.toolbox}

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        from ferrule.programs.react_loop.loop import carry

        return carry(self, inputs)

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """What to show of a trajectory that no longer fits the model's window: all but the oldest step. Override it to keep summaries."""
        return type(trajectory)(trajectory.steps[1:])
