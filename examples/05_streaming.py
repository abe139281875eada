"""Stream a run: text word by word, calls and results as they happen."""

from ferrule import ReAct, configure, progress
from ferrule.events import CallFinished, CallProgress, CallStarted, FieldDelta, Preamble
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
            "It was the butler.",
        ],
    ),
)
agent = ReAct("question -> answer", [read_pages])

answer, seen = "", []
with agent.stream(question="Who did it?") as stream:
    for event in stream:
        match event:
            case FieldDelta(text=text):
                answer += text
            case Preamble(text=text):  # the text so far was not the answer: a call follows
                answer = ""
                seen.append(f"the model says: {text}")
            case CallStarted(call=call):
                seen.append(f"started {call.name}")
            case CallProgress(done=done, total=total):
                seen.append(f"{done:g} of {total:g}")
            case CallFinished(result=result):
                seen.append(f"finished: {result.text}")
            case _:
                pass

print("\n".join(seen))
print("answer:", answer)

assert seen == [
    "the model says: I have to read it first.",
    "started read_pages",
    "1 of 3",
    "2 of 3",
    "3 of 3",
    "finished: It was the butler.",
]
assert answer == stream.prediction.answer == "It was the butler."
