"""An agent with the tools of an MCP server. One of them needs approval: the run pauses, and resumes with the answer."""

from __future__ import annotations

from ferrule import MCPServer, ReAct, configure, tool
from ferrule.mcp_bridge import MCPApp
from ferrule.testing import ScriptedLM

deleted: list[str] = []


def find(words: str) -> list[str]:
    """Find files by words of their names."""
    return [name for name in ("notes.txt", "old-notes.txt") if words in name]


@tool(require_confirmation=True)
def delete(path: str) -> str:
    """Delete a file."""
    deleted.append(path)
    return f"{path} is gone"


# This server is in the same process, so that the example runs anywhere. `mcp("npx -y ...")` and `mcp("https://...")` work the same way.
files = MCPServer.in_memory(MCPApp([find, delete], name="files").server, trust=True, confirm=False)


def local_time() -> str:
    """Tell the time."""
    return "12:00"


configure(
    lm=ScriptedLM(
        [
            {"name": "find", "args": {"words": "old"}},
            {"name": "delete", "args": {"path": "old-notes.txt"}},
            {"name": "finish", "args": {"answer": "old-notes.txt is gone."}},
        ],
    ),
)
agent = ReAct("task -> answer", [files, local_time])
run = agent.start(task="Delete my old notes.")

[question] = run.pending
print(question.text)
assert (question.kind, question.server, question.original) == ("input", "files", "delete")
assert deleted == []

run.answer(question.fill({"approve": True}))
run.resume()
files.close()

print(run.prediction.answer)
assert deleted == ["old-notes.txt"]
