"""A planner with two agents as tools. All three share one run: one trajectory of events, one usage, one set of limits."""

from collections import Counter

from ferrule import InputField, Limits, OutputField, ReAct, Request, Signature, tool
from ferrule.events import CallFinished
from ferrule.testing import ScriptedLM

TRAINS = {("Utrecht", "Basel"): ["06:12, one change, 98 EUR", "08:30, direct, 129 EUR"]}
HOTELS = {
    "Basel": [
        ["Rhine Inn, 140 EUR, 2 km", "Old Mill, 95 EUR, 6 km"],
        ["Station Hotel, 120 EUR, 0.2 km"],
        ["Grand Basel, 310 EUR, 1 km"],
    ],
}


@tool(effect="read")
def trains(origin: str, destination: str) -> list[str]:
    """List the trains of tomorrow morning."""
    return TRAINS[origin, destination]


@tool(effect="read")
def hotels(city: str, page: int = 1) -> list[str]:
    """List the hotels of a city, one page at a time."""
    return HOTELS[city][page - 1]


class FindTrain(Signature):
    """Choose a train."""

    origin: str = InputField()
    destination: str = InputField()
    train: str = OutputField()


class FindHotel(Signature):
    """Choose a hotel within the budget, near the station."""

    city: str = InputField()
    budget: int = InputField(desc="Euros for a night.")
    hotel: str = OutputField()


class Plan(Signature):
    """Plan a trip. Ask `rail` and `lodging`; do not invent trains or hotels."""

    wish: str = InputField()
    plan: list[str] = OutputField()


# -- the models' part, so that this runs offline. Without `lm=`, an agent inside another one uses the model of the outer one. -------------


def call(name: str, **args: object) -> dict[str, object]:
    """A call as a script writes it."""
    return {"name": name, "args": args}


def conductor(request: Request) -> object:
    """Looks once, then takes the direct train."""
    if request.messages[-1].role != "tool":
        return call("trains", origin="Utrecht", destination="Basel")
    return call("finish", train="08:30, direct, 129 EUR")


def browser(request: Request) -> object:
    """Turns page after page, and never stops. At a limit, ferrule removes its tools and asks for the outputs."""
    if not len(request.tools):
        return {
            "outputs": {
                "reasoning": "I choose from what I saw.",
                "hotel": "Station Hotel, 120 EUR, 0.2 km",
            },
        }
    return call("hotels", city="Basel", page=len(request.messages) // 2)


def chief(request: Request) -> object:
    """Asks both agents in one step, so that they work at the same time, and finishes with their answers."""
    if not len(request.tools):
        return {
            "outputs": {
                "reasoning": "I may not go on.",
                "plan": ["hotel: Station Hotel", "train: not looked for"],
            },
        }
    results = [message.text for message in request.messages if message.role == "tool"]
    if results:
        return call("finish", plan=results)
    hotel = call("lodging", city="Basel", budget=150)
    return (
        hotel
        if "hotel first" in request.messages[1].text
        else [call("rail", origin="Utrecht", destination="Basel"), hotel]
    )


# -- the agents -------------------------------------------------------------------------------------------------------

rail = ReAct(FindTrain, [trains], lm=ScriptedLM(by=conductor))
lodging = ReAct(
    FindHotel,
    [hotels],
    lm=ScriptedLM(by=browser),
    limits=Limits(steps=2),  # its own limit, within those of the run
    on_limit="extract",  # otherwise the whole run would end there with a `LimitReachedError`
)
planner = ReAct(
    Plan,
    [rail.as_tool("rail", "Finds a train."), lodging.as_tool("lodging", "Finds a hotel.")],
    lm=ScriptedLM(by=chief),
)

# 1. `lodging` reaches its own limit. It answers with what it has and says so, and the planner continues.
inside = Counter[str]()
with planner.stream(wish="Basel tomorrow, one night, at most 150 EUR.") as stream:
    for event in stream:
        if isinstance(
            event,
            CallFinished,
        ):  # also calls of the two agents: `event.parent_id` is the call that started the agent
            inside[event.call.name] += 1
prediction = stream.prediction
print("calls:", dict(sorted(inside.items())))
for result in prediction.trajectory.steps[0].results:
    print(f"{result.name}: {result.content}")
print("plan:", prediction.plan)
print("model calls of all three:", prediction.usage.calls)

# 2. A limit of the run counts the steps of all three. A step counts when its calls are done, so `lodging` may take one here, and then
#    the planner none. Nothing raises: each agent that reaches the limit answers with what it has.
prediction = planner(
    wish="The same, but the hotel first.", limits=Limits(steps=1), on_limit="extract"
)
print("lodging:", prediction.trajectory.steps[0].results[0].content)
print("plan:", prediction.plan)
print("ended by:", prediction.reason, "| model calls of all three:", prediction.usage.calls)
