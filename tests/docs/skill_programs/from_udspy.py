"""The program of docs/coming-from/udspy.md, on the core of ferrule."""

from ferrule import InputField, OutputField, ReAct, Signature, configure, tool
from ferrule.testing import ScriptedLM

gone = []


@tool(name="delete_file", desc="Delete a file", require_confirmation=True)
def delete_file(path: str) -> str:
    gone.append(path)
    return f"Deleted {path}"


class Task(Signature):
    """Do the task."""

    task: str = InputField()
    result: str = OutputField()


configure(
    lm=ScriptedLM(
        [
            {"name": "delete_file", "args": {"path": "/tmp/a"}},
            {"name": "finish", "args": {"result": "done"}},
        ]
    )
)
run = ReAct(Task, tools=[delete_file]).start(task="Delete /tmp/a")
[question] = run.pending
assert (question.call.name, gone) == ("delete_file", [])

run.answer(question.approve())
run.resume()
assert run.prediction.result == "done"
assert gone == ["/tmp/a"]
