"""A conversation: each turn receives the history, which reaches the model as separate messages."""

from ferrule import History, InputField, OutputField, Predict, Signature, configure
from ferrule.testing import ScriptedLM


class Chat(Signature):
    """Talk with the user."""

    history: History = InputField()
    message: str = InputField()
    reply: str = OutputField()


lm = ScriptedLM(
    [
        "[[ ## reply ## ]]\nNice to meet you, Ada.\n\n[[ ## completed ## ]]",
        "[[ ## reply ## ]]\nYour name is Ada.\n\n[[ ## completed ## ]]",
    ],
)
configure(lm=lm)
chat = Predict(Chat)

turns = []
for message in ("I am Ada.", "What is my name?"):
    prediction = chat(history=History(messages=turns), message=message)
    turns = [*turns, {"message": message, "reply": prediction.reply}]
    print("user: ", message)
    print("model:", prediction.reply)

# The second request holds the first turn as a user message and an assistant message.
assert [message.role for message in lm.requests[1].messages] == [
    "system",
    "user",
    "assistant",
    "user",
]
assert prediction.reply == "Your name is Ada."
