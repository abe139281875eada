"""Tools that a model's provider runs: their declarations, calls and citations.

A declaration is data. It goes into the list of a program's tools, and the wire of the model encodes
it (`models/wires/provider_tools.py`). The provider decides on its calls and runs them within one
request, so no program, policy or person can stop one of them: a policy decides before the request
whether the tool is declared at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, get_type_hints

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import fields, force_setattr

from ferrule.errors import ToolDefinitionError, shown
from ferrule.record import CheckedStruct, PartlyCompared

ToolKind = Literal[
    "web_search", "web_fetch", "code_execution", "file_search", "remote_mcp", "tool_search"
]
"""What a provider's tool does, in one word for all providers."""


class ProviderTool(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """Base class of tools that the model's provider runs."""

    kind: ClassVar[ToolKind]
    require_confirmation: Literal[False] = False
    """Always False: the provider runs a call before anyone here has seen it.

    A policy may deny the tool, which then is not declared to the model.
    """

    @property
    def name(self) -> str:
        """The tool's name, in policies, events and steps."""
        return self.kind

    def __post_init__(self) -> None:
        title = type(self).__name__
        if self.require_confirmation is not False:
            raise ToolDefinitionError(
                f"`{title}` takes no confirmation: the provider decides on its calls and runs them "
                "before they are known here, so no person can be asked first. Leave the tool out, "
                "let a policy `deny` it, or write a tool of your own that needs confirmation."
            )
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            try:
                checked = convert(value, hint, strict=True)
            except ValidationError as error:
                found = f" = {shown(value)}"
                if name in getattr(self, "_not_shown", ()):
                    found = ""
                raise ToolDefinitionError(f"`{title}`, `{name}`{found}: {error}.") from error
            force_setattr(self, name, checked)

    def options(self) -> dict[str, Any]:
        """The options that are set, by name. Values are not JSON: a location is an object."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        del values["require_confirmation"]
        return {name: value for name, value in values.items() if value not in _UNSET}

    def declaration(self) -> dict[str, Any]:
        """What a digest covers and a saved program says: all but secrets."""
        return {"kind": self.kind, **self.options()}


_UNSET: tuple[Any, ...] = (None, (), "", {})


@cache
def _hints(kind: type[ProviderTool]) -> dict[str, Any]:
    names = {option.name for option in fields(kind)} - {"require_confirmation"}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names}


class Location(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the user is, roughly, for results that fit the place."""

    city: str | None = None
    region: str | None = None
    country: str | None = None
    """Two letters, such as `FR` (ISO 3166-1)."""
    timezone: str | None = None
    """Such as `Europe/Paris` (IANA)."""


class WebSearch(ProviderTool, frozen=True, kw_only=True):
    """Lets the model search the web, where its provider has a search.

    ```python
    ReAct("question -> answer", tools=[WebSearch(allowed_domains=["python.org"])])
    ```
    """

    kind: ClassVar[ToolKind] = "web_search"
    max_uses: int | None = None
    """The most searches in one request."""
    allowed_domains: tuple[str, ...] = ()
    """Only results of these domains."""
    blocked_domains: tuple[str, ...] = ()
    """No results of these domains. Not together with `allowed_domains`."""
    location: Location | None = None
    context_size: Literal["low", "medium", "high"] | None = None
    """How much of the results the model reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_domains(self.allowed_domains, self.blocked_domains)


class WebFetch(ProviderTool, frozen=True, kw_only=True):
    """Lets the model read pages of the web whose addresses are in the conversation."""

    kind: ClassVar[ToolKind] = "web_fetch"
    max_uses: int | None = None
    """The most pages in one request."""
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    max_content_tokens: int | None = None
    """The most tokens of one page, roughly."""
    citations: bool = False
    """Whether the answer cites the pages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_domains(self.allowed_domains, self.blocked_domains)

    def options(self) -> dict[str, Any]:
        """See `ProviderTool.options`."""
        options = super().options()
        if not self.citations:
            del options["citations"]
        return options


class CodeExecution(ProviderTool, frozen=True, kw_only=True):
    """Lets the model run code in the provider's sandbox."""

    kind: ClassVar[ToolKind] = "code_execution"
    files: tuple[str, ...] = ()
    """The provider's ids of uploaded files that the code may read."""


class FileSearch(ProviderTool, frozen=True, kw_only=True):
    """Lets the model search files that you have uploaded to the provider."""

    kind: ClassVar[ToolKind] = "file_search"
    stores: tuple[str, ...]
    """The provider's ids of the stores: vector stores, file search stores, collections."""
    max_results: int | None = None
    filter: Mapping[str, Any] | str | None = None
    """A filter of the files' attributes, in the provider's form: an object or a text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stores:
            raise ToolDefinitionError("`FileSearch` needs the ids of its stores: `stores=[...]`.")


class RemoteMCP(PartlyCompared, ProviderTool, frozen=True, kw_only=True):
    """Lets the provider call the tools of an MCP server that it can reach.

    The calls do not pass through this program: for tools that need a policy, arguments that people
    see, or a server of your own network, use `MCPServer`.
    """

    _not_shown = frozenset({"token", "headers"})

    kind: ClassVar[ToolKind] = "remote_mcp"
    label: str
    """The name of the server, in policies, events and steps."""
    url: str
    token: str | None = None
    """A bearer token for the server. Not shown, stored or saved."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further headers for the server. Not shown, stored or saved."""
    allowed_tools: tuple[str, ...] = ()
    """The tools that the model may call; all of them if empty."""
    description: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.label or not self.url.startswith(("https://", "http://")):
            raise ToolDefinitionError(
                "`RemoteMCP` needs a name and the server's address, which the provider calls: "
                f'RemoteMCP(label="docs", url="https://..."), found {self.label!r} and '
                f"{shown(self.url)}."
            )

    @property
    def name(self) -> str:
        """See `ProviderTool.name`."""
        return self.label

    def declaration(self) -> dict[str, Any]:
        """See `ProviderTool.declaration`."""
        declaration = super().declaration()
        for secret in self._not_shown:
            declaration.pop(secret, None)
        return declaration


class ToolSearch(ProviderTool, frozen=True, kw_only=True):
    """Lets the provider search the program's own tools, and show its model those that fit.

    `Toolbox(tools, search="provider")` declares it. The deferred tools are in each request, but the
    model does not read their schemas before a search finds them.
    """

    kind: ClassVar[ToolKind] = "tool_search"
    deferred: tuple[str, ...] = ()
    """The names of the tools to search, as they are declared to the model."""


PROVIDER_TOOLS: Mapping[ToolKind, type[ProviderTool]] = {
    tool.kind: tool
    for tool in (WebSearch, WebFetch, CodeExecution, FileSearch, RemoteMCP, ToolSearch)
}
"""Every kind of tool that a provider may run, with the class that declares it."""


class ProviderCall(Struct, metaclass=CheckedStruct, frozen=True):
    """A call that the provider made and ran while the model answered."""

    name: str
    """A kind, such as `web_search`; the name of the tool for a call to a remote MCP server."""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result: str | None = None
    """What came of it, as far as the provider shows it; None if it shows nothing.

    For a search, a line for each page: its title and its address.
    """
    is_error: bool = False
    id: str | None = None
    server: str = ""
    """The label of the remote MCP server; empty for the provider's own tools."""

    @property
    def kind(self) -> ToolKind | str:
        """What the tool does, in the words of `ProviderTool.kind`; another word if it is new."""
        return "remote_mcp" if self.server else self.name


def count_calls(calls: Iterable[ProviderCall]) -> dict[str, int]:
    """How many of the calls there were of each kind.

    Without those that failed, which are not charged for, and those that have not ended.
    """
    counts: dict[str, int] = {}
    for call in calls:
        if call.result is not None and not call.is_error:
            counts[call.kind] = counts.get(call.kind, 0) + 1
    return counts


class Citation(Struct, metaclass=CheckedStruct, frozen=True):
    """A source that an answer cites."""

    url: str | None = None
    title: str | None = None
    quote: str | None = None
    """The words of the source."""
    start: int | None = None
    """Where the passage that rests on the source begins in `Response.text`, if that is known."""
    end: int | None = None
    """The position after the end of the passage."""
    file: str | None = None
    """The id or the name of a file, for one that is not on the web."""


def _check_domains(allowed: tuple[str, ...], blocked: tuple[str, ...]) -> None:
    if allowed and blocked:
        raise ToolDefinitionError(
            "`allowed_domains` and `blocked_domains` do not go together. Give one of them."
        )
    for domain in (*allowed, *blocked):
        if not domain or "://" in domain:
            raise ToolDefinitionError(
                f'A domain is written without its scheme, such as "python.org"; found {domain!r}.'
            )
