"""A function becomes a tool: name, docstring and types describe it to the model, and every call is validated against them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ferrule import tool
from ferrule.errors import ToolArgumentsError


@dataclass
class Place:
    """Somewhere on the map."""

    city: str
    country: str = "NL"


@tool
def forecast(
    place: Place,
    days: Annotated[int, Field(ge=1, le=7)] = 1,
    unit: Literal["C", "F"] = "C",
) -> str:
    """Forecast the weather.

    Args:
        place: Where.
        days: For how many days.
        unit: Degrees Celsius or Fahrenheit.

    """
    return f"{place.city}: 18 {unit} for {days} day(s)"


print(forecast.name, "-", forecast.desc)
print(forecast.parameters["properties"]["days"])

# It is still a function. Dicts are converted to the types of the parameters, and "2" to a number.
assert forecast(Place("Utrecht")) == "Utrecht: 18 C for 1 day(s)"
assert forecast(place={"city": "Utrecht"}, days="2", unit="F") == "Utrecht: 18 F for 2 day(s)"

# The error lists every problem, in words that a model can act on. The function does not run.
try:
    forecast(place={"country": "NL"}, days=9, speed="fast")
except ToolArgumentsError as error:
    print(error)
    problems = dict(error.problems)
assert problems.keys() == {"place.city", "days", "speed"}
