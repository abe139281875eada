"""How each wire declares the tools that a provider runs.

A table of forms: what is always sent, and where each option goes. An option that is not in a form
cannot be sent on that wire, which is an error before the request. `models/providers.py` says which
provider has which tool, and `docs/reference/models.md` has both tables for readers.

Forms: the types of openai-python 3.54, anthropic-sdk-python 2.12 and python-genai, November 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins

from ferrule.errors import ConfigurationError
from ferrule.models.providers import refuse_unsupported
from ferrule.models.wires.payload import Json, list_of
from ferrule.values.conversation.exchange import declared_name
from ferrule.values.provider_tools import ToolSearch

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.provider_tools import ToolKind


class Form(Struct, frozen=True):
    """How one wire declares one kind of tool."""

    fixed: Json
    """The fields that are always sent."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    """For each option, the path of keys to its value."""
    make: Mapping[str, Callable[[Any], Json]] = field(
        default_factory=dict[str, "Callable[[Any], Json]"]
    )
    """For options that are sent in another form: functions that make fields of the entry."""
    section: str = ""
    """A second list of the body in which the tool has an entry too, such as `mcp_servers`."""
    section_form: Form | None = None
    """How the tool is declared there."""
    marks: frozenset[str] = frozenset()
    """Options that are not in an entry: the wire marks the declarations of other tools with them.
    """

    @property
    def known_options(self) -> frozenset[str]:
        """The options that can be sent."""
        names = {*self.options, *self.make, *self.marks}
        if self.section_form is not None:
            names |= self.section_form.known_options
        return frozenset(names)

    def entry(self, values: Mapping[str, Any]) -> Json:
        """The declaration with these options, without those that belong elsewhere."""
        entry = to_builtins(self.fixed)  # a copy at all levels, which the options change
        for name, value in values.items():
            if name in self.make:
                entry |= self.make[name](value)
            elif name in self.options:
                *parents, key = self.options[name]
                fields = entry
                for parent in parents:
                    fields = fields.setdefault(parent, {})
                fields[key] = to_builtins(value)
        return entry


def _location(location: Any) -> Json:
    return {"user_location": {"type": "approximate", **to_builtins(location)}}


def _enable_only(tools: Sequence[str]) -> Json:
    """Anthropic's way to allow some tools of a server: all are off but these."""
    configs = {tool: {"enabled": True} for tool in tools}
    return {"default_config": {"enabled": False}, "configs": configs}


def _citations(is_enabled: bool) -> Json:
    return {"citations": {"enabled": is_enabled}}


_DOMAINS = {"allowed_domains": ("allowed_domains",), "blocked_domains": ("blocked_domains",)}
FORMS: Mapping[str, Mapping[ToolKind, Form]] = {
    "openai_responses": {
        "web_search": Form(
            {"type": "web_search"},
            {
                "allowed_domains": ("filters", "allowed_domains"),
                "context_size": ("search_context_size",),
            },
            {"location": _location},
        ),
        "code_execution": Form(
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"files": ("container", "file_ids")},
        ),
        "file_search": Form(
            {"type": "file_search"},
            {
                "stores": ("vector_store_ids",),
                "max_results": ("max_num_results",),
                "filter": ("filters",),
            },
        ),
        # Without `never`, the provider would ask for an approval and wait.
        "remote_mcp": Form(
            {"type": "mcp", "require_approval": "never"},
            {
                "label": ("server_label",),
                "url": ("server_url",),
                "token": ("authorization",),
                "headers": ("headers",),
                "allowed_tools": ("allowed_tools",),
                "description": ("server_description",),
            },
        ),
        "tool_search": Form({"type": "tool_search"}, marks=frozenset({"deferred"})),
    },
    "anthropic": {
        # The first versions, which every model with these tools takes. Later ones (from 20260209)
        # run code of the model over the results, and Haiku refuses them.
        "web_search": Form(
            {"type": "web_search_20250305", "name": "web_search"},
            {"max_uses": ("max_uses",), **_DOMAINS},
            {"location": _location},
        ),
        "web_fetch": Form(
            {"type": "web_fetch_20250910", "name": "web_fetch"},
            {
                "max_uses": ("max_uses",),
                **_DOMAINS,
                "max_content_tokens": ("max_content_tokens",),
            },
            {"citations": _citations},
        ),
        "code_execution": Form({"type": "code_execution_20250825", "name": "code_execution"}),
        "remote_mcp": Form(
            {"type": "mcp_toolset"},
            {"label": ("mcp_server_name",)},
            {"allowed_tools": _enable_only},
            section="mcp_servers",
            section_form=Form(
                {"type": "url"},
                {"label": ("name",), "url": ("url",), "token": ("authorization_token",)},
            ),
        ),
        # A search by words. The other one, with regular expressions of the model, needs a model
        # that knows how the tools are named.
        "tool_search": Form(
            {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
            marks=frozenset({"deferred"}),
        ),
    },
    "gemini": {
        "web_search": Form({"googleSearch": {}}),
        "web_fetch": Form({"urlContext": {}}),
        "code_execution": Form({"codeExecution": {}}),
        "file_search": Form(
            {"fileSearch": {}},
            {
                "stores": ("fileSearch", "fileSearchStoreNames"),
                "max_results": ("fileSearch", "topK"),
                "filter": ("fileSearch", "metadataFilter"),
            },
        ),
    },
}
"""For each wire, how it declares each kind of tool that its providers run."""


def deferred_tools(request: Request) -> frozenset[str]:
    """The names of the declared tools that the model does not read before a search finds them.

    A tool that the model must call (`tool_choice`) is read at once.
    """
    names: set[str] = set()
    for tool in request.provider_tools:
        if isinstance(tool, ToolSearch):
            names.update(tool.deferred)
    match request.tool_choice:
        case str() as name:
            names.discard(name)
        case {"function": {"name": name}} | {"name": name}:
            names.discard(name)
        case _:
            pass
    return frozenset(names)


def _finds_any(search: ToolSearch, request: Request) -> bool:
    """Whether any tool that the search may find is declared."""
    return any(declared_name(tool) in search.deferred for tool in request.tools)


def with_provider_tools(wire: str, request: Request, extra: Json) -> Json:
    """`extra`, the user's fields of a body, with the declarations of the provider's tools.

    A search for tools is declared only if there are tools to find.

    Raises `ConfigurationError` for a tool, or an option of it, that the wire cannot declare.
    """
    forms = FORMS.get(wire, {})
    sections: dict[str, list[Any]] = {}
    for tool in request.provider_tools:
        if isinstance(tool, ToolSearch) and not _finds_any(tool, request):
            continue
        refuse_unsupported(f"The wire {wire}", forms, [tool])
        form = forms[tool.kind]
        options = tool.options()
        unknown = sorted(options.keys() - form.known_options)
        if unknown:
            known = ", ".join(f"`{name}`" for name in sorted(form.known_options)) or "none"
            raise ConfigurationError(
                f"`{type(tool).__name__}({unknown[0]}=...)` cannot be sent on the wire {wire}: "
                f"nothing was sent. Leave it out; the options there are: {known}."
            )
        sections.setdefault("tools", []).append(form.entry(options))
        if form.section_form is not None:
            sections.setdefault(form.section, []).append(form.section_form.entry(options))
    if not sections:
        return extra
    for name, entries in sections.items():
        # The user's own come after: the beginning of the body stays the same for the cache.
        sections[name] = [*entries, *list_of(extra.get(name))]
    return {**extra, **sections}
