"""Answers to `initialize` that no revision of MCP allows: what is not needed is done without, and
an error says what is wrong.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import pytest
from mcp_leaks import nothing_left

from ferrule import MCPServer, ReAct
from ferrule.errors import MCPProtocolError

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures(nothing_left.__name__)]

CHILD = r"""
import json, sys
TALK = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if number is None:
        continue
    answer = {"result": {}}
    if method == "server/discover":
        answer = {"error": {"code": -32601, "message": "no"}}
    if method == "initialize":
        wanted = TALK.get("only")
        if wanted and message["params"]["protocolVersion"] != wanted:
            answer = {"error": TALK["error"]}
        else:
            answer = {"result": TALK["initialize"]}
    if method == "tools/list":
        tools = [{"name": "look", "inputSchema": {"type": "object"}}]
        answer = {"result": {"tools": tools, **TALK.get("page", {})}}
    print(json.dumps({"jsonrpc": "2.0", "id": number, **answer}), flush=True)
"""
VERSION = "2025-11-25"
GOOD = {
    "protocolVersion": VERSION,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "s", "version": "1"},
}


@contextmanager
def child(**talk):
    talk.setdefault("initialize", GOOD)
    command = ["-c", CHILD, json.dumps(talk)]
    with MCPServer.stdio(sys.executable, command, name="s", timeout_s=20) as tools:
        yield tools


def without(field):
    return {name: value for name, value in GOOD.items() if name != field}


NOT_NEEDED = {
    "no serverInfo": without("serverInfo"),
    "serverInfo without a version": {**GOOD, "serverInfo": {"name": "s"}},
    "serverInfo is a text": {**GOOD, "serverInfo": "s"},
    "a version that is a number": {**GOOD, "serverInfo": {"name": "s", "version": 1}},
    "no capabilities": without("capabilities"),
    "capabilities are a list": {**GOOD, "capabilities": []},
    "a capability is a list": {**GOOD, "capabilities": {"tools": []}},
    "a capability is true": {**GOOD, "capabilities": {"tools": True, "logging": False}},
    "a capability is broken": {**GOOD, "capabilities": {"tools": {"listChanged": "?"}}},
    "instructions are a list": {**GOOD, "instructions": ["Be nice."]},
}


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_what_is_not_needed_stops_nothing(name):
    with child(initialize=NOT_NEEDED[name]) as tools:
        assert [tool.name for tool in tools] == ["look"]


REFUSED = {
    "no version": (without("protocolVersion"), "without `protocolVersion`"),
    "a null version": ({**GOOD, "protocolVersion": None}, "without `protocolVersion`"),
    "a number": ({**GOOD, "protocolVersion": 2}, "`protocolVersion` 2, which must be one of 2024"),
    "a later one": ({**GOOD, "protocolVersion": "2031-01-01"}, "`protocolVersion` '2031-01-01'"),
    "an earlier one": ({**GOOD, "protocolVersion": "2024-10-07"}, "2024-10-07.*one of 2024-11-05"),
    "a list": ({**GOOD, "protocolVersion": [VERSION]}, r"`protocolVersion` \['2025-11-25'\]"),
    "nothing": ({}, "`initialize` came without `protocolVersion`"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", ["auto", VERSION])
def test_an_answer_that_cannot_be_accepted_says_which_field_or_revision(name, mode):
    answer, words = REFUSED[name]
    command = ["-c", CHILD, json.dumps({"initialize": answer})]
    server = MCPServer.stdio(sys.executable, command, name="s", timeout_s=20, mode=mode)
    with pytest.raises(MCPProtocolError, match=words) as caught:
        server.connect()
    assert "exited" not in str(caught.value)
    assert caught.value.phase == "handshake"
    server.close()


REFUSALS = {
    "data": {"code": -32602, "message": "Unsupported", "data": {"supported": ["2024-11-05"]}},
    "message": {"code": -32602, "message": "Unsupported version. Supported: 2024-11-05"},
    "several": {"code": -32000, "message": "Supported: 1999-01-01, 2024-11-05, 2025-11-25"},
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_older_revision_that_a_server_asks_for_is_tried(name):
    answer = {**GOOD, "protocolVersion": "2024-11-05"}
    with child(initialize=answer, only="2024-11-05", error=REFUSALS[name]) as tools:
        assert [tool.name for tool in tools] == ["look"]


def test_a_refusal_without_a_revision_that_is_spoken_is_raised():
    error = {"code": -32602, "message": "Supported: 1999-01-01"}
    command = ["-c", CHILD, json.dumps({"initialize": GOOD, "only": "1999-01-01", "error": error})]
    server = MCPServer.stdio(sys.executable, command, name="s", timeout_s=20)
    with pytest.raises(MCPProtocolError, match="Supported: 1999-01-01"):
        server.connect()
    server.close()


def test_a_cursor_that_repeats_keeps_the_tools_and_warns(caplog):
    with child(page={"nextCursor": "again"}) as tools:
        assert [tool.name for tool in tools] == ["look"]
    assert "leads to the page 'again' a second time" in caplog.text


def test_the_tools_of_a_block_stand_in_a_list_of_tools():
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    with child() as tools:
        for given in ([tools], tools, [add, tools], [*tools, tools]):
            names = [tool.name for tool in ReAct("question -> answer", given).toolbox]
            assert "look" in names
            assert names.count("look") == 1
