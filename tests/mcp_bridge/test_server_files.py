"""Files of MCP servers in the forms of six editors, written from their public documentation: each
loads, and its servers run. (M2, P74)

code.visualstudio.com/docs/agents/reference/mcp-configuration, code.claude.com/docs/en/mcp,
modelcontextprotocol.io/docs (Claude Desktop), cursor.com/docs/mcp,
geminicli.com/docs/tools/mcp-server, zed.dev/docs/ai/mcp; all of November 2026.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mcp_servers
import pytest
from mcp_leaks import nothing_left

from ferrule import MCPServer
from ferrule.errors import ConfigurationError, MCPConnectionError
from ferrule.mcp_bridge import OAuth

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SCRIPT = Path(__file__).parents[1] / "moody_server.py"
TOKEN = "hunter2-hunter2"
_ = nothing_left

CLAUDE_DESKTOP = """{
  "globalShortcut": "",
  "mcpServers": {
    "notes": {
      "command": PYTHON,
      "args": [SERVER, "~/mood"],
      "env": {"API_KEY": "hunter2-hunter2"}
    }
  }
}"""

CLAUDE_CODE = """{
  "mcpServers": {
    "notes": {
      "type": "stdio",
      "command": "${PYTHON_HERE:-no-such-python}",
      "args": [SERVER, "${MOOD:-nowhere}"],
      "env": {"API_KEY": "${TOKEN}", "MODE": "${MODE:-read}"}
    }
  }
}"""

CURSOR = """{
  "mcpServers": {
    "notes": {
      "command": PYTHON,
      "args": [SERVER, "${workspaceFolder}${/}mood"],
      "env": {"API_KEY": "${env:TOKEN}", "HOME_OF": "${userHome}", "PROJECT": "${workspaceFolderBasename}"},
      "envFile": "${workspaceFolder}/.env"
    },
  },
}"""

VS_CODE = """\ufeff{
  // Asked once, and not kept in this file.
  "inputs": [
    {"type": "promptString", "id": "api-key", "description": "The key of the notes", "password": true},
    {"type": "pickString", "id": "mode", "description": "Mode", "options": ["read", "write"], "default": "read"},
  ],
  "servers": {
    "notes": {
      "type": "stdio",
      "command": PYTHON, /* the same as ours */
      "args": [SERVER, "${workspaceFolder}/mood"],
      "env": {"API_KEY": "${input:api-key}", "MODE": "${input:mode}", "ADDRESS": "https://example.com//x", "GONE": null, "COUNT": 3},
      "envFile": "${workspaceFolder}/.env",
      "cwd": "${workspaceFolder}",
      "dev": {"watch": "build/**"},
    },
  },
}
"""

VS_CODE_SETTINGS = """{
  "editor.fontSize": 14, // others have their own settings here
  "mcp": {
    "inputs": [{"type": "promptString", "id": "api-key", "description": "The key of the notes", "password": true}],
    "servers": {
      "notes": {"command": PYTHON, "args": [SERVER, "${workspaceFolder}/mood"], "env": {"API_KEY": "${input:api-key}"}},
    },
  },
}"""

GEMINI = """{
  "theme": "Default",
  "mcp": {"allowed": ["notes"]},
  "mcpServers": {
    "notes": {
      "command": PYTHON,
      "args": [SERVER, "./mood"],
      "cwd": "${workspaceFolder}",
      "env": {"API_KEY": "$TOKEN"},
      "timeout": 30000,
      "trust": true,
      "includeTools": ["echo", "environment"],
      "excludeTools": ["echo"]
    }
  }
}"""

ZED = """{
  "context_servers": {
    // Servers of extensions have settings only.
    "notes": {
      "source": "custom",
      "command": {"path": PYTHON, "args": [SERVER, "${workspaceFolder}/mood"], "env": {"API_KEY": "${TOKEN}"}},
      "settings": {},
    },
    "newer": {
      "enabled": true,
      "command": PYTHON,
      "args": [SERVER, "${workspaceFolder}/mood"],
      "env": {"API_KEY": "${TOKEN}"},
    },
    "off": {"enabled": false, "command": "no-such-command"},
  },
}"""

FILES = {
    "claude_desktop_config.json": CLAUDE_DESKTOP,
    ".mcp.json": CLAUDE_CODE,
    ".cursor/mcp.json": CURSOR,
    ".vscode/mcp.json": VS_CODE,
    ".vscode/settings.json": VS_CODE_SETTINGS,
    ".gemini/settings.json": GEMINI,
    ".zed/settings.json": ZED,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a `.env`, in which a server of `mood` has two tools; it is the home folder
    too.
    """
    found = tmp_path / "project"
    (found / "mood").mkdir(parents=True)
    (found / "mood" / "tools").write_text("echo environment")
    (found / ".env").write_text(
        "# the key is elsewhere\nexport FROM_FILE='a # b'  # quoted\nAPI_KEY=older\nPLAIN = x # said\n",
    )
    for name, value in {
        "TOKEN": TOKEN,
        "MOOD": str(found / "mood"),
        "HOME": str(found),
        "PYTHON_HERE": sys.executable,
    }.items():
        monkeypatch.setenv(name, value)
    return found


def written(project: Path, name: str) -> Path:
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        FILES[name]
        .replace("PYTHON,", f"{json.dumps(sys.executable)},")
        .replace("SERVER", json.dumps(str(SCRIPT))),
        "utf-8",
    )
    return path


def ask(about: dict[str, Any]) -> str | None:
    """A person who knows the key and leaves the rest."""
    return (
        TOKEN
        if about["id"] == "api-key" and about["password"] and "key" in about["description"]
        else None
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(sys.platform == "win32", reason="HOME is another variable there")
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_editor_runs_as_it_is(project: Path, name: str) -> None:
    for server in MCPServer.load(written(project, name), inputs=ask).values():
        with server as tools:
            seen = json.loads(server.call("environment")["content"][0]["text"])
            assert seen["API_KEY"] == TOKEN
            assert [each.name for each in tools] == (
                ["environment"] if "gemini" in name else ["echo", "environment"]
            )
        assert TOKEN not in f"{server!r} {server.dump_state()}"


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is another variable there")
def test_variables_paths_and_environment_files_are_read_as_the_editors_read_them(
    project: Path,
) -> None:
    seen: dict[str, dict[str, Any]] = {}
    for name in (".cursor/mcp.json", ".vscode/mcp.json", ".mcp.json"):
        [server] = MCPServer.load(written(project, name), inputs=ask).values()
        with server:
            seen[name] = json.loads(server.call("environment")["content"][0]["text"])
            if "vscode" in name:
                assert json.loads(server.call("echo")["content"][0]["text"])[2] == str(project)
    assert (seen[".cursor/mcp.json"]["HOME_OF"], seen[".cursor/mcp.json"]["PROJECT"]) == (
        str(project),
        "project",
    )
    assert (seen[".cursor/mcp.json"]["FROM_FILE"], seen[".cursor/mcp.json"]["PLAIN"]) == (
        "a # b",
        "x",
    )
    code = seen[".vscode/mcp.json"]
    assert (code["MODE"], code["ADDRESS"], code["COUNT"], "GONE" in code) == (
        "read",
        "https://example.com//x",
        "3",
        False,
    )
    assert seen[".mcp.json"]["MODE"] == "read"


def test_a_server_over_http_gets_the_token_of_the_environment(project: Path) -> None:
    """Gemini CLI's `httpUrl`, and the `url` of others."""
    port = mcp_servers.free_port()
    command = [sys.executable, "-m", "ferrule", "serve", "--http", "--port", str(port)]
    with mcp_servers.listening(command, {"FERRULE_SERVE_TOKEN": TOKEN}, port):
        for entry in (
            {
                "httpUrl": f"http://127.0.0.1:{port}/mcp",
                "headers": {"Authorization": "Bearer $TOKEN"},
            },
            {
                "url": f"http://127.0.0.1:{port}/mcp",
                "type": "streamableHttp",
                "headers": {"Authorization": "Bearer ${env:TOKEN}"},
            },
            {
                "url": f"http://127.0.0.1:{port}/mcp",
                "type": "remote",
                "headers": {"Authorization": "Bearer ${input:token}"},
            },
        ):
            [server] = MCPServer.load(
                {"mcpServers": {"web": entry}},
                inputs={"token": TOKEN},
            ).values()
            with server as tools:
                assert len(tools) > 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("${env:NO_SUCH}", "`NO_SUCH`"),
        ("$NO_SUCH", "`NO_SUCH`"),
        ("Bearer ${NO_SUCH}", "`NO_SUCH`"),
        ("${input:api-key}", r"`api-key`.*inputs=\{'api-key'"),
        ("${command:ext.token}", r"`\$\{command:ext\.token\}`"),
        ("${config:a.b}", r"`\$\{config:a\.b\}`"),
        ("${NO_SUCH:-${TOKEN}}", r"does not know"),
        ("${}", r"does not know"),
    ],
    ids=["env", "bare", "within", "input", "command", "config", "nested", "empty"],
)
@pytest.mark.parametrize("key", ["headers", "env"])
def test_a_reference_that_stands_for_nothing_is_named_and_never_sent(
    key: str,
    value: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    entry = {"url": "https://example.com/mcp"} if key == "headers" else {"command": "x"}
    with pytest.raises(ConfigurationError, match=rf"`web`.*{told}"):
        MCPServer.load(
            {"mcpServers": {"web": {**entry, key: {"Authorization": value}}}},
            on_error="raise",
        )
    [server] = MCPServer.load(
        {"mcpServers": {"web": {**entry, key: {"Authorization": value}}}},
    ).values()
    with pytest.raises(ConfigurationError, match=rf"`web`.*{told}"):
        server.connect()
    if not value.startswith("$NO"):  # only files have names without braces
        with pytest.raises(ConfigurationError, match=rf"`web`.*{told}"):
            MCPServer.from_state({**entry, key: {"Authorization": value}}, "web")


def test_a_command_in_one_text_gets_a_hint() -> None:
    [server] = MCPServer.load(
        {"mcpServers": {"a": {"command": "no-such-npx -y pack --token hunter2"}}},
    ).values()
    with pytest.raises(
        MCPConnectionError,
        match=r'"command": "no-such-npx", "args": \["-y", "pack", "--token", "\*\*\*"\]',
    ):
        server.connect()
    with pytest.raises(MCPConnectionError, match=r"the command `no-such-npx` was not found\."):
        MCPServer.stdio("no-such-npx").connect()
    with pytest.raises(MCPConnectionError, match=r"`cwd`"):
        MCPServer.stdio(sys.executable, cwd=Path("no", "such")).connect()
    with pytest.raises(
        MCPConnectionError,
        match=r"the folder .* \(`cwd`\) was not found",
    ):  # what Windows says of every such folder
        MCPServer.stdio(sys.executable, cwd=Path(__file__)).connect()


def test_an_environment_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    [server] = MCPServer.load(
        {"mcpServers": {"a": {"command": sys.executable, "envFile": str(tmp_path / "gone")}}},
    ).values()
    with pytest.raises(ConfigurationError, match=r"envFile.*`a`.*gone"):
        server.connect()


def test_a_comment_that_does_not_end_and_a_comma_too_many_are_told_with_their_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mcp.json"
    for text in (
        '{"mcpServers": {} /* no end',
        '{"mcpServers": {},, }',
        '{\n// x\n"mcpServers": {"a": }}',
    ):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"mcp\.json.*line [13]"):
            MCPServer.load(path)


def test_a_saved_server_of_a_file_is_loaded_again(project: Path) -> None:
    [server] = MCPServer.load(written(project, ".mcp.json")).values()
    saved = json.loads(json.dumps(server.dump_state()))
    assert MCPServer.from_state(saved).spec.expanded() == server.spec.expanded()
    assert saved["env"]["API_KEY"] == "${TOKEN}"


def test_log_ins_of_editors_files_are_read_and_saved_without_their_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """code.claude.com/docs/en/mcp, cursor.com/docs/mcp, geminicli.com/docs/tools/mcp-server, VS
    Code's mcp.json; all of November 2026.
    """
    monkeypatch.setenv("SECRET", "hunter2")
    url = "https://example.com/mcp"
    entries = {
        "claude": {
            "type": "http",
            "url": url,
            "oauth": {"clientId": "me", "callbackPort": 8080, "scopes": "read write"},
        },
        "cursor": {
            "url": url,
            "auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${env:SECRET}", "scopes": ["read"]},
        },
        "code": {"type": "http", "url": url, "oauth": {"clientId": "me"}},
        "gemini": {
            "httpUrl": url,
            "oauth": {"enabled": True, "clientId": "me", "clientSecret": "hunter2"},
        },
        "off": {"httpUrl": url, "oauth": {"enabled": False}},
        "fast": {"url": url, "auth": "oauth"},
        "plain": {"url": url},
        "token": {"url": url, "headers": {"Authorization": "Bearer x"}},
    }
    wanted = {
        "claude": OAuth(client_id="me", callback_port=8080, scopes=("read", "write")),
        "cursor": OAuth(client_id="me", client_secret="hunter2", scopes=("read",)),
        "code": OAuth(client_id="me"),
        "gemini": OAuth(client_id="me", client_secret="hunter2"),
        "off": None,
        "fast": OAuth(),
        "plain": None,
        "token": None,
    }
    loaded = MCPServer.load({"mcpServers": entries})
    assert {name: server.spec.expanded().oauth for name, server in loaded.items()} == wanted
    asked = MCPServer.load({"mcpServers": entries}, auth="oauth")
    assert {name: server.spec.expanded().oauth for name, server in asked.items()} == {
        **wanted,
        "plain": OAuth(),
    }
    saved = {name: server.dump_state() for name, server in loaded.items()}
    assert "hunter2" not in f"{saved}{list(loaded.values())}"
    monkeypatch.setenv("GEMINI_CLIENT_SECRET", "hunter2")
    monkeypatch.setenv("TOKEN_AUTHORIZATION", "Bearer x")
    assert {
        name: MCPServer.from_state(each).spec.expanded().oauth for name, each in saved.items()
    } == wanted


@pytest.mark.parametrize("auth", ["Bearer hunter2", {"clientId": "x"}])
def test_what_is_no_log_in_is_refused_without_showing_it(auth: object) -> None:
    with pytest.raises(ConfigurationError, match=r"`auth` of an MCP server is") as raised:
        MCPServer.http("https://example.com/mcp", auth=auth)
    assert "hunter2" not in str(raised.value)
