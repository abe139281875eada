"""Servers as values: read, expanded, shown and saved without secrets. (M2, M66, M67, P74)"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import MCPServer, mcp
from ferrule.errors import ConfigurationError, ToolDefinitionError
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.spec import ServerSpec, name_of_command, name_of_url, spec_from_state

SECRET = "hunter2-hunter2"


def test_a_file_of_servers_gives_the_same_servers_as_the_constructors(
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROOT", "/srv")
    monkeypatch.setenv("TOKEN", SECRET)
    path = tmp_path / "mcp.json"
    servers = {
        "files": {
            "command": "npx",
            "args": ["-y", "server", "${ROOT}/data", "${MODE:-read}"],
            "env": {"TOKEN": "${TOKEN}"},
        },
        "web": {
            "type": "streamable-http",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
        },
        "old": {"type": "sse", "url": "https://example.com/sse"},
        "off": {"command": "x", "disabled": True},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    found = MCPServer.load(path, timeout_s=5)
    assert (
        found
        == MCPServer.load(str(path), timeout_s=5)
        == MCPServer.load({"mcpServers": servers}, timeout_s=5)
    )
    assert {name: each.spec.expanded() for name, each in found.items()} == {
        "files": MCPServer.stdio(
            "npx",
            ["-y", "server", "/srv/data", "read"],
            env={"TOKEN": SECRET},
            name="files",
        ).spec,
        "web": MCPServer.http(
            "https://example.com/mcp",
            headers={"Authorization": f"Bearer {SECRET}"},
            name="web",
        ).spec,
        "old": MCPServer.sse("https://example.com/sse", name="old").spec,
    }
    assert found["files"].options.timeout_s == 5


def test_every_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.delenv("NOR_THIS", raising=False)
    with pytest.raises(ConfigurationError, match=r"`files`.*`NOT_SET`, `NOR_THIS`"):
        MCPServer.load(
            {
                "mcpServers": {
                    "files": {
                        "command": "x",
                        "args": ["${NOT_SET}"],
                        "env": {"A": "${NOR_THIS}", "B": "${NOT_SET}"},
                    },
                },
            },
            on_error="raise",
        )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({}, "mcpServers"),
        ({"mcpServers": []}, "mcpServers"),
        ({"mcpServers": {"a": {}}}, r"`a` needs a `command` or a `url`"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "list of texts"),
        ({"mcpServers": {"a": {"command": "x", "env": ["y"]}}}, "must map names"),
        (
            {"mcpServers": {"a": {"type": "carrier-pigeon", "url": "https://x"}}},
            "stdio, http or sse",
        ),
        ({"mcpServers": {"a": "npx"}}, "mapping"),
    ],
    ids=["empty", "a_list", "nothing_in_it", "args", "env", "type", "text"],
)
def test_what_is_no_server_is_told(source: dict, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        MCPServer.load(source, on_error="raise")


@pytest.mark.parametrize(
    "make",
    [
        lambda: MCPServer.stdio("npx", "-y server"),  # would be one argument for each letter
        lambda: MCPServer.stdio("npx", 3),
        lambda: MCPServer.stdio("npx", env="A=b"),
        lambda: MCPServer.stdio("npx", cwd=3),
        lambda: MCPServer.stdio(""),
        lambda: MCPServer.stdio(3),
        lambda: MCPServer.stdio("npx", name=3),
        lambda: MCPServer.http(3),
        lambda: MCPServer.sse(""),
        lambda: mcp("https://x/mcp", headers="A: b"),
        lambda: MCPServer.load(3),
        lambda: MCPServer.replay(3),
        lambda: MCPServer.in_memory(3),
        lambda: MCPServer.http("example.com/mcp"),
        lambda: MCPServer.http("https://"),
        lambda: MCPServer.http("https://[::1/mcp"),
        lambda: MCPServer.sse("https://example.com:port/sse"),
        lambda: MCPServer.http("http://example.com/mcp"),  # without TLS
        lambda: MCPServer.http("https://x/mcp", auth=3),
        lambda: MCPServer.http("https://x/mcp", auth="a token"),
        lambda: MCPServer.http("https://x/mcp", {"Authorization": "Bearer of-a-file\n"}),
        lambda: MCPServer.http("https://x/mcp", {"two words": "a"}),
        lambda: mcp("npx server", confirm="maybe"),
        lambda: mcp("npx server", confirm={"*": 1}),
    ],
    ids=range(24),
)
def test_a_server_that_cannot_be_meant_is_refused_where_it_is_made(make) -> None:
    with pytest.raises((ConfigurationError, ToolDefinitionError)):
        make()


def test_a_command_may_be_a_path_and_its_variables_any_mapping() -> None:
    made = MCPServer.stdio(
        Path("/bin/tool"), (str(n) for n in (1, 2)), MappingProxyType({"A": "b"})
    )
    assert made.spec == MCPServer.stdio("/bin/tool", ["1", "2"], {"A": "b"}).spec


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"mcp\.json"):
        MCPServer.load(path)
    with pytest.raises(ConfigurationError, match="nowhere"):
        MCPServer.load(tmp_path / "nowhere.json")


SERVERS = [
    MCPServer.stdio(
        "npx",
        ["-y", "server", "--api-key", SECRET, f"--token={SECRET}"],
        env={"API_KEY": SECRET},
        name="files",
        timeout_s=5,
        trust=True,
    ),
    MCPServer.http(
        f"https://me:{SECRET}@example.com/mcp?api_key={SECRET}&page=1",
        headers={"Authorization": f"Bearer {SECRET}"},
        name="web",
    ),
    MCPServer.sse("https://example.com/sse", headers={"X-Key": SECRET}, name="old", allow=["a*"]),
]


@pytest.mark.parametrize("server", SERVERS, ids=["stdio", "http", "sse"])
def test_secrets_are_neither_shown_nor_saved(server: MCPServer) -> None:
    for text in (repr(server), str(server), repr(server.spec), json.dumps(server.dump_state())):
        assert SECRET not in text
        assert server.name in text


def test_what_was_saved_is_loaded_when_its_variables_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options come along; a secret is read from the variable that stands in its place."""
    server = SERVERS[0]
    saved = json.loads(json.dumps(server.dump_state()))
    with pytest.raises(ConfigurationError, match=r"`FILES_API_KEY`.*`API_KEY`"):
        MCPServer.from_state(saved)
    for name in ("API_KEY", "FILES_API_KEY", "FILES_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    loaded = MCPServer.from_state(saved)
    assert loaded.spec.expanded() == server.spec
    assert loaded.options == server.options
    assert loaded.options.rules.trust
    assert loaded.dump_state() == saved


def test_a_server_in_this_process_cannot_be_saved() -> None:
    pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
    with pytest.raises(ConfigurationError, match="this process"):
        MCPServer.in_memory(MCPApp().server, name="x").dump_state()


@given(
    env=st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True),
        st.text(min_size=1).filter(lambda text: "$" not in text),
        max_size=4,
    ),
    args=st.lists(st.from_regex(r"[a-z][a-z0-9./]{0,12}", fullmatch=True), max_size=4),
)
def test_a_spec_survives_saving(env: dict[str, str], args: list[str]) -> None:
    """With the variables of the saved form set to what they were."""
    spec = ServerSpec(name="s", transport="stdio", command="run", args=tuple(args), env=env)
    assert spec_from_state(json.loads(json.dumps(spec.dump_state()))).expanded(env) == spec


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
)
def test_junk_in_a_file_is_told_and_nothing_else_raised(junk: object) -> None:
    try:
        MCPServer.load({"mcpServers": {"a": junk}}, on_error="raise")
    except ConfigurationError as error:
        assert "`a`" in str(error) or "mapping" in str(error)


@pytest.mark.parametrize(
    ("command", "args", "name"),
    [
        ("npx", ["-y", "@scope/server-files@1.0", "x"], "server-files"),
        ("uvx", ["mcp-server-time"], "mcp-server-time"),
        ("python3.11", ["-m", "my_server"], "my_server"),
        ("/srv/bin/serve.sh", [], "serve"),
        ("uv", ["run", "server.py"], "server"),
        ("npx", [], "npx"),
    ],
    ids=["npx", "uvx", "module", "script", "uv", "nothing"],
)
def test_a_server_is_named_after_what_it_runs(command: str, args: list[str], name: str) -> None:
    assert name_of_command(command, args) == name


def test_a_server_is_named_after_its_host_and_an_unusual_port() -> None:
    assert [
        name_of_url(each)
        for each in (
            "https://a:b@example.com/x",
            "http://localhost:3000",
            "http://localhost:4000/mcp",
        )
    ] == [
        "example.com",
        "localhost-3000",
        "localhost-4000",
    ]
    assert [
        name_of_url(each)
        for each in ("https://h:443", "http://h:80", "http://h:443", "https://[::1]:9")
    ] == [
        "h",
        "h",
        "h-443",
        "1-9",
    ]


@pytest.mark.parametrize(
    "text",
    ["${FOO}", "$${FOO}", "$$${", "a ${FOO:-b} ${", "${not one}", "$x {y}"],
)
def test_what_looks_like_a_variable_comes_back_as_it_was(text: str) -> None:
    """A command line that was given in code is the same one when it is loaded."""
    spec = ServerSpec(
        name="s",
        transport="stdio",
        command=text,
        args=(text, "--to", text),
        cwd=text,
        env={"A": text},
    )
    saved = json.loads(json.dumps(spec.dump_state()))
    assert spec_from_state(saved).expanded({"A": text, "FOO": "no"}) == spec
    assert spec_from_state(saved).dump_state() == saved


LEAKING = [
    MCPServer.stdio("docker", ["run", "-i", "-e", f"GITHUB_TOKEN={SECRET}", "img"]),
    MCPServer.stdio(
        "docker",
        ["run", f"-eTOKEN={SECRET}", f"--env=OTHER={SECRET}", "--env", f"lower={SECRET}", "img"],
    ),
    mcp(f"env GITHUB_TOKEN={SECRET} img"),
    mcp(f"GITHUB_TOKEN={SECRET} img"),
    mcp(f"npx --api-key {SECRET} img"),
    mcp(
        f"npx img --header 'Authorization: Bearer {SECRET}' -H X-Key:{SECRET} '-HX-Key: {SECRET}' --header={SECRET}",
    ),
    mcp(
        f"npx img postgresql://u:{SECRET}@h/db postgresql://u:x/{SECRET}@h/db --db=redis://:{SECRET}@h/0",
    ),
    mcp(f"npx img --pat={SECRET} --password {SECRET} https://h/x?code={SECRET}#{SECRET}"),
    MCPServer.http(f"https://u:{SECRET}@img/mcp?code={SECRET}&{SECRET}#{SECRET}"),
]


@pytest.mark.parametrize(
    "server",
    LEAKING,
    ids=["e", "glued", "env", "before", "flag", "header", "address", "named", "url"],
)
def test_no_secret_is_in_a_name_nor_shown_nor_saved_and_with_its_variables_it_is_the_same(
    server: MCPServer,
) -> None:
    saved = json.loads(json.dumps(server.dump_state()))
    for text in (server.name, repr(server), str(saved)):
        assert SECRET not in text
    assert server.name == "img"
    names = set(re.findall(r"\$\{(\w+)\}", str(saved)))
    values = ["Bearer " + SECRET, f"u:{SECRET}", f":{SECRET}", f"u:x/{SECRET}@h/db", SECRET]
    for found in itertools.product(values, repeat=len(names)):
        if (
            spec_from_state(saved).expanded(dict(zip(sorted(names), found, strict=True)))
            == server.spec
        ):
            return
    pytest.fail(f"no values of {names} make it the same")
