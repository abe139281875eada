"""A tool that needs approval: the run pauses until someone decides, and then resumes."""

from ferrule import ReAct, configure, tool
from ferrule.testing import ScriptedLM

deleted: list[str] = []


@tool(require_confirmation=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    deleted.append(path)
    return f"{path} is gone"


configure(
    lm=ScriptedLM(
        [
            {"name": "delete_file", "args": {"path": "notes.txt"}},
            {"name": "delete_file", "args": {"path": "thesis.txt"}},
            {"name": "finish", "args": {"answer": "I deleted the notes and kept the thesis."}},
        ],
    ),
)
run = ReAct("task -> answer", [delete_file]).start(task="Delete notes.txt and thesis.txt.")

while run.status == "waiting":
    for question in run.pending:
        print(question.text)
        assert question.call.args["path"] not in deleted  # it does not run before the decision
        if question.call.args["path"] == "thesis.txt":
            run.answer(question.deny("The thesis is not finished."))
        else:
            run.answer(question.approve())
    run.resume()

print(run.trajectory["observation_1"])
print("answer:", run.prediction.answer)

assert deleted == ["notes.txt"]
assert "The thesis is not finished." in run.trajectory["observation_1"]
assert run.prediction.answer == "I deleted the notes and kept the thesis."
