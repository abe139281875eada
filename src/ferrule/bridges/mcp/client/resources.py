"""What a server has besides tools: what it says of itself, resources, prompts.

In: names and URIs. Out: the protocol's plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.concurrency.offload import run_async
from ferrule.values.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ferrule.bridges.mcp.client.operations import Core

R = TypeVar("R")


class ServerInfo(Record, kw_only=True):
    """What a server says of itself."""

    name: str = ""
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    """Written by the server for a model: not to be trusted, and put into no prompt unless you do so."""
    protocol_version: str = ""
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])


class Content:
    """What `MCPServer` can do besides calling tools."""

    if TYPE_CHECKING:

        @property
        def core(self) -> Core: ...  # noqa: D102  `MCPServer` says it

        async def there(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R: ...  # noqa: D102  the same

    async def aresources(self) -> list[dict[str, Any]]:
        """Its resources: `uri`, `name`, `mimeType`, ...; none where it has no such thing."""
        core = self.core
        return await self.there(lambda: core.list_of("resources/list", "resources"))

    def resources(self) -> list[dict[str, Any]]:
        """`aresources` for sync code."""
        return run_async(self.aresources())

    async def aresource_templates(self) -> list[dict[str, Any]]:
        """Its templates of resources: `uriTemplate`, `name`, ..."""
        core = self.core
        return await self.there(lambda: core.list_of("resources/templates/list", "resourceTemplates"))

    def resource_templates(self) -> list[dict[str, Any]]:
        """`aresource_templates` for sync code."""
        return run_async(self.aresource_templates())

    async def aread_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of one resource: each with `uri`, and `text` or `blob` (base64)."""
        core = self.core
        found = await self.there(lambda: core.read("resources/read", {"uri": uri}))
        return cast("list[dict[str, Any]]", found.get("contents") or [])

    def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """`aread_resource` for sync code."""
        return run_async(self.aread_resource(uri))

    async def aprompts(self) -> list[dict[str, Any]]:
        """Its prompts: `name`, `description`, `arguments`."""
        core = self.core
        return await self.there(lambda: core.list_of("prompts/list", "prompts"))

    def prompts(self) -> list[dict[str, Any]]:
        """`aprompts` for sync code."""
        return run_async(self.aprompts())

    async def aget_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """One prompt with its arguments filled in: `description` and `messages`."""
        core = self.core
        params = {"name": name, **({"arguments": dict(arguments)} if arguments else {})}
        return await self.there(lambda: core.read("prompts/get", params))

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """`aget_prompt` for sync code."""
        return run_async(self.aget_prompt(name, arguments))
