"""Many inputs at once: one run for each, several in parallel, predictions in input order."""

from ferrule import InputError, Predict, Request, configure
from ferrule.testing import ScriptedLM


def label(request: Request) -> str:
    """Answer as the model. The order of requests is undefined, because the runs overlap."""
    mood = "good" if "love" in request.messages[-1].text else "bad"
    return f"[[ ## mood ## ]]\n{mood}\n\n[[ ## completed ## ]]"


configure(lm=ScriptedLM(by=label))
classify = Predict("review -> mood")

reviews = ["I love it", "It broke", "My cat loves it", "Never again"]
predictions = classify.batch(
    [{"review": review} for review in reviews],
    max_concurrency=3,
    progress=False,
)
for review, prediction in zip(reviews, predictions, strict=True):
    print(f"{prediction.mood:5} {review}")

# With `return_exceptions=True`, an error takes the place of its prediction.
mixed = classify.batch(
    [{"review": "I love it"}, {"reveiw": "It broke"}],
    progress=False,
    return_exceptions=True,
)
for outcome in mixed:
    if isinstance(outcome, BaseException):
        print(f"{type(outcome).__name__}: {outcome}")
    else:
        print(outcome.mood)

assert [prediction.mood for prediction in predictions] == ["good", "bad", "good", "bad"]
assert isinstance(mixed[1], InputError)
