import json

import pytest

from ferrule.approval.rulings import needs_person
from ferrule.errors import ConfirmationRequired, ToolArgumentsError, ToolDefinitionError, ToolRetry
from ferrule.tools.search import defer_tools, summary
from ferrule.tools.tool import Tool


class Server:
    name = "s"

    def call(self, name, arguments):
        raise NotImplementedError

    async def acall(self, name, arguments):
        raise NotImplementedError

    async def call_tool(self, name, arguments=None):
        return {
            "content": [{"type": "text", "text": f"{name} {json.dumps(arguments)}"}],
            "isError": name == "git_fail",
        }


def remote(name, description="", **options):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return Tool.from_mcp_tool(
        Server(),
        {"name": name, "description": description, "inputSchema": schema},
        **{"confirm": False, **options},
    )


TOOLS = [
    remote("git_log", "Shows the log. Then much more that nobody needs at first."),
    remote("git_commit", "Records changes to the repository."),
    remote("fetch", "Gets a page, its log too."),
]


def test_a_list_of_one_line_each():
    search, *_ = defer_tools(TOOLS)
    assert (
        search()
        == "git_log: Shows the log.\ngit_commit: Records changes to the repository.\nfetch: Gets a page, its log too."
    )
    assert search(query="log") == "git_log: Shows the log.\nfetch: Gets a page, its log too."
    assert search(query="Commit CHANGES") == "git_commit: Records changes to the repository."
    assert search(query="zebra") == "No tool matches these words."


def test_long_lists_and_long_lines_are_cut():
    search, *_ = defer_tools([remote(f"t{i}") for i in range(30)])
    assert search().splitlines()[-1] == "(10 more; use other words)"
    assert len(summary(remote("t", "word " * 100))) == 120


def test_loading_without_a_run_gives_the_schema_alone():
    _, load, _ = defer_tools(TOOLS)
    assert json.loads(load(name="git_log"))["parameters"] == TOOLS[0].schema


def test_loading_gives_the_schema_and_tells_the_run():
    """Then the run offers the tool itself."""
    loaded = []
    search, load = defer_tools(TOOLS, on_load=loaded.append)
    assert (search.name, load.name) == ("search_tools", "load_tool")
    assert json.loads(load(name="git_log")) == {
        "name": "git_log",
        "description": TOOLS[0].description,
        "parameters": TOOLS[0].schema,
    }
    assert loaded == [TOOLS[0]]
    with pytest.raises(ToolRetry, match="Did you mean `git_log`"):
        load(name="git_lo")


def test_without_a_run_that_offers_it_calls_are_passed_on_and_checked():
    call = defer_tools([*TOOLS, remote("git_fail")])[2]
    assert call(name="git_log", arguments={"n": "3"}).content == 'git_log {"n": 3}'
    assert call(name="git_fail", arguments={"n": 3}).is_error
    with pytest.raises(ToolArgumentsError, match="`git_log`"):
        call(name="git_log", arguments={"n": "x"})
    with pytest.raises(ToolRetry, match="search_tools"):
        call(name="zebra", arguments={})


def test_consent_is_asked_for_as_the_tool_itself_would():
    """Nothing is opened by going round."""
    call = defer_tools(
        [
            remote("free"),
            remote("asks", confirm=True),
            remote("big", confirm=lambda each: lambda args: args["n"] > 5),
        ],
    )[2]
    assert call(name="free", arguments={"n": 1}).content == 'free {"n": 1}'
    assert call(name="big", arguments={"n": 5}).content == 'big {"n": 5}'
    for name, n in (("asks", 1), ("big", 6)):
        with pytest.raises(ConfirmationRequired):
            call(name=name, arguments={"n": n})


def test_a_name_of_its_own_is_refused():
    with pytest.raises(ToolDefinitionError, match="`load_tool`"):
        defer_tools([remote("load_tool")])
    assert defer_tools([remote("call_tool")], on_load=print)


def test_call_tool_asks_for_what_is_destructive_and_not_for_what_only_reads() -> None:
    """As the tools themselves do."""

    def look(path: str) -> str:
        return path

    def wipe(path: str) -> str:
        return path

    tools = [
        Tool(look, effect="read", require_confirmation="destructive"),
        Tool(wipe, effect="once", require_confirmation="destructive"),
    ]
    call_tool = defer_tools(tools)[-1]
    asks = {
        name: needs_person(call_tool, {"name": name, "arguments": {"path": "a"}})
        for name in ("look", "wipe", "absent")
    }
    assert asks == {"look": False, "wipe": True, "absent": False}
