"""Stream a run: thoughts word by word, then calls and results as they happen."""

from ferrule import ReAct, configure, progress
from ferrule.events import CallFinished, CallProgress, CallStarted, ThoughtDelta
from ferrule.testing import ScriptedLM


def read_pages(pages: int) -> str:
    """Read a number of pages of the book."""
    for page in range(1, pages + 1):
        progress(f"page {page}", done=page, total=pages)
    return "It was the butler."


configure(
    lm=ScriptedLM(
        [
            {
                "text": "I have to read it first.",
                "tool_calls": [{"name": "read_pages", "args": {"pages": 3}}],
            },
            {"name": "finish", "args": {"answer": "the butler"}},
        ],
    ),
)
agent = ReAct("question -> answer", [read_pages])

words, seen = [], []
with agent.stream(question="Who did it?") as stream:
    for event in stream:
        match event:
            case ThoughtDelta(text=text):
                words.append(text)
            case CallStarted(call=call):
                seen.append(f"started {call.name}")
            case CallProgress(done=done, total=total):
                seen.append(f"{done:g} of {total:g}")
            case CallFinished(result=result):
                seen.append(f"finished: {result.content}")
            case _:
                pass

print("".join(words))
print("\n".join(seen))
print("answer:", stream.prediction.answer)

assert "".join(words) == "I have to read it first."
assert seen == ["started read_pages", "1 of 3", "2 of 3", "3 of 3", "finished: It was the butler."]
assert stream.prediction.answer == "the butler"
