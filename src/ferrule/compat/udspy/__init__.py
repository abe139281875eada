"""udspy's names and behaviour over ferrule. docs/coming-from/udspy.md lists each name.

All submodules are this one module.
"""

import sys
from types import ModuleType

from ferrule import *  # noqa: F403
from ferrule.compat.udspy.models import *  # noqa: F403
from ferrule.compat.udspy.modules import *  # noqa: F403
from ferrule.compat.udspy.values import *  # noqa: F403

PredictContext = ModuleContext  # noqa: F405
_PAGES = (
    "adapter callback confirmation decorators exceptions formatters history lm lm.factory "
    "lm.openai module module.base module.callbacks module.chain_of_thought module.predict "
    "module.react settings signature streaming tool tool.decorator tool.tool tool.types utils "
    "utils.async_support utils.formatting utils.schema"
)
for _page in _PAGES.split():
    sys.modules[f"{__name__}.{_page}"] = sys.modules[__name__]

_base = ModuleType(f"{__name__}.lm.base")
vars(_base)["LM"] = BaseLM  # noqa: F405  which has another name everywhere else
sys.modules[_base.__name__] = _base

_MISSING = {
    "ACTIVE_CALL_ID",
    "Episode",
    "ensure_sync_context",
    "execute_function_async",
    "format_tool_exception",
    "minimize_schema",
    "resolve_json_schema_reference",
    "run_async_with_context",
    "PROVIDER_REGISTRY",
    "StreamingParser",
    "translate_field_type",
    "with_callbacks",
}


def __getattr__(name: str) -> object:
    text = (
        f"`ferrule.compat.udspy` has no `{name}`. "
        "docs/coming-from/udspy.md says what is there instead."
    )
    if name in _MISSING:
        raise ImportError(text)
    raise AttributeError(text)
