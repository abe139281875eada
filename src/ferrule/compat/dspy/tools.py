"""DSPy's tools over the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

from types import FunctionType
from typing import Any

import ferrule
from ferrule.compat.dspy.settings import settings


class Tool(ferrule.Tool):
    """A tool whose declaration in OpenAI's form is that of the version of DSPy in use."""

    def format_as_litellm_function_call(self):
        """Until DSPy 3.4, all arguments are required; from then on, those without a default."""
        declaration = super().format_as_litellm_function_call()
        parameters = declaration["function"]["parameters"]
        if not settings.is_version("3.4"):
            parameters["required"] = [*parameters.get("properties", {})]
        return declaration

    @classmethod
    def from_mcp_tool(cls, *which, result_mode="text", **options):
        """`result_mode="structured"` returns the structured value of a result, if it has one."""
        if result_mode not in {"text", "structured"}:
            raise ValueError(f"Unsupported MCP result mode: {result_mode!r}")
        if result_mode == "structured":
            options["result_mode"] = result_mode
        return super().from_mcp_tool(*which, **options)


convert_mcp_tool = Tool.from_mcp_tool


def with_dspys_tools(tools: Any) -> Any:
    """Tools of which those that are functions are DSPy's."""
    if not isinstance(tools, list | tuple):
        return tools
    return [Tool.of(tool) if isinstance(tool, FunctionType) else tool for tool in tools]
