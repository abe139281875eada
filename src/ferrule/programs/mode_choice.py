"""Native calls or calls in text: which a model gets, and why, said once.  (Floor 5.)"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from ferrule.errors import BadRequest, LMError

if TYPE_CHECKING:
    from ferrule.programs.ask import Asker

_log = logging.getLogger("ferrule.programs")
_told: set[tuple[str, str]] = set()
# As Ollama ("... does not support tools", ollama issue 11131), vLLM, OpenRouter and others word it.
_REFUSAL = re.compile(
    r"(?:not|n't) support\w*\W+(?:\w+\W+){0,3}?(?:tool|function)|no endpoints found that support tool"
    r"|(?:tools?|functions?)(?: use| choice| calls?| calling)? (?:is|are) (?:not|un)[ -]?supported|--enable-auto-tool-choice",
    re.IGNORECASE,
)


def calls_natively(how: Asker, wanted: bool | None) -> bool:
    """Whether tools are declared to the model: as the program wants, or by what the model can."""
    if wanted is not None:
        return wanted
    if not how.capabilities.native_tools:
        _tell(how, "its capabilities say that it takes no tool declarations")
    return how.capabilities.native_tools


def refuses_tools(how: Asker, error: LMError) -> bool:
    """Whether the model was reached and takes no tool declarations, whatever its capabilities say."""
    if not isinstance(error, BadRequest) or not _REFUSAL.search(str(error)):
        return False
    _tell(how, f"it refused the declared tools ({error})")
    return True


def _tell(how: Asker, reason: str) -> None:
    name = str(how.lm.name)
    if (name, reason) not in _told:
        _told.add((name, reason))
        _log.warning(
            "%s gets its tools in the text of the prompt: %s. `native=False` says so from the start, `native=True` insists.", name, reason
        )
