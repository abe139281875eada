"""Which tools of a server pass the filters `allow` and `deny`."""

import pytest

from ferrule.errors import ConfigurationError
from ferrule.mcp_bridge.client.options import options_from
from ferrule.tools.mcp_definition import MCPDefinition


def definition(name, **hints):
    return MCPDefinition(name, {"type": "object"}, annotations=hints)


@pytest.mark.parametrize(
    ("allow", "deny", "passes"),
    [
        pytest.param(None, None, ["get_a", "get_b", "drop"], id="nothing said"),
        pytest.param("get_*", None, ["get_a", "get_b"], id="a glob"),
        pytest.param(["get_a", "drop"], None, ["get_a", "drop"], id="several"),
        pytest.param([], None, [], id="none at all"),
        pytest.param(None, "get_?", ["drop"], id="denied"),
        pytest.param("get_*", {"get_b"}, ["get_a"], id="denied wins"),
        pytest.param("GET_*", None, [], id="case counts"),
        pytest.param(
            lambda each: each.hint("readOnlyHint"),
            None,
            ["get_a"],
            id="a function of the definition",
        ),
    ],
)
def test_allow_and_deny_select_tools(allow, deny, passes):
    options = options_from({"allow": allow, "deny": deny})
    tools = [definition("get_a", readOnlyHint=True), definition("get_b"), definition("drop")]
    assert [each.name for each in tools if options.passes(each)] == passes


@pytest.mark.parametrize("seconds", [0, float("inf"), float("nan")])
def test_a_question_expires_in_a_time_that_a_run_can_keep(seconds):
    """The call failed with a message about the journal."""
    with pytest.raises(ConfigurationError, match="`input_expires_s`"):
        options_from({"input_expires_s": seconds})


def test_a_filter_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="`allow` of an MCP server must be names"):
        options_from({"allow": [3]})

    async def none(_):
        return False

    with pytest.raises(ConfigurationError, match="is async"):
        options_from({"allow": none})
    with pytest.raises(ConfigurationError, match="is not awaited"):
        options_from({"allow": lambda definition: none(definition)}).passes(definition("drop"))
