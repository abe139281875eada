"""`Prices`: what answers cost, by the tables of genai-prices and by prices of your own.

Importing the tables takes as long as importing ferrule several times: the driver does it in another
thread, when the first answer needs them. Nothing is downloaded unless asked for.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, checks_keywords, shown
from ferrule.models.providers import PROVIDERS

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Response, Usage

_log = logging.getLogger("ferrule.models")
_LITELLM = "litellm"
"""Its names of models hold the provider, and genai-prices reads them."""


class Prices:
    """Prices of models that do not report their cost: `configure(prices=Prices())`. Needs `pip install 'ferrule[prices]'`.

    ```python
    configure(prices=Prices())
    configure(prices=Prices(extra={"my-model": (0.5, 2.0)}))  # US dollars per million tokens: input, output
    ```
    `extra` has prices of your own, by the name of the model with or without its provider; they come
    first. The others are those of the installed genai-prices; `update=True` downloads newer ones
    now and each hour, an address does so from there. An answer of an unknown model has no cost,
    which is logged once for each model.
    """

    @checks_keywords
    def __init__(
        self,
        *,
        update: bool | str = False,
        extra: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._extra = _checked(extra or {})
        self._update = update
        self._tables: Any = None
        self._has_tables = find_spec("genai_prices") is not None
        self._unknown: set[str] = set()
        self._lock = threading.Lock()
        if not self._has_tables and (update or not self._extra):
            raise ConfigurationError(
                "`Prices` needs genai-prices: pip install 'ferrule[prices]'. Without it, give all prices: `extra={...}`.",
            )

    def waits(self, response: Response, name: str) -> bool:
        """Whether `cost_of` loads the tables first."""
        return (
            self._tables is None
            and self._has_tables
            and self._own(response, name) is None
            and _is_listed(name)
        )

    def cost_of(self, response: Response, name: str) -> float | None:
        """The cost in US dollars of an answer of the model `name` that came now; None if it is unknown."""
        own = self._own(response, name)
        if own is not None:
            return _own_cost(response.usage, own)
        is_known = _is_listed(name)
        cost = (
            self._listed_cost(response, name) if is_known and response.usage.total_tokens else None
        )
        if cost is None and name not in self._unknown:
            self._unknown.add(name)
            _log.warning(
                "The cost of %s is unknown: %s",
                name,
                _reason(response, is_listed=is_known),
                extra={"model": name},
            )
        return cost

    def _own(self, response: Response, name: str) -> tuple[float, float] | None:
        names = (name, name.partition("/")[2], response.model)
        return next((self._extra[each] for each in names if each in self._extra), None)

    def _listed_cost(self, response: Response, name: str) -> float | None:
        tables, (provider, _, model) = self._load(), name.partition("/")
        if tables is None:
            return None
        counts = tables.Usage(**_counts(response.usage))
        context = _service_tier(response.raw)
        for each in dict.fromkeys(
            filter(None, (response.model, model)),
        ):  # the name that was asked for may be an alias
            try:
                found = tables.calc_price(
                    counts,
                    each,
                    provider_id=provider,
                    genai_request_timestamp=datetime.now(UTC),
                    price_context=context,
                )
            except (
                LookupError,
                ValueError,
                TypeError,
                ArithmeticError,
            ):  # no such model; counts that do not fit its prices
                continue
            if (
                found.model_price.input_mtok is not None
                or found.model_price.output_mtok is not None
            ):  # a subscription has neither
                return float(found.total_price)
        return None

    def _load(self) -> Any:
        if self._tables is None and self._has_tables:
            with self._lock:
                if self._tables is None:
                    import genai_prices

                    if self._update:
                        self._begin_updates(genai_prices)
                    self._tables = genai_prices
        return self._tables

    def _begin_updates(self, tables: Any) -> None:
        updates = tables.UpdatePrices(
            **({"url": self._update} if isinstance(self._update, str) else {}),
        )
        updates.start()

    def __repr__(self) -> str:
        update = f"update={self._update!r}" if self._update else ""
        return f"Prices({', '.join(filter(None, (update, f'extra={self._extra!r}' if self._extra else '')))})"


def _checked(extra: Any) -> dict[str, tuple[float, float]]:
    if not isinstance(extra, Mapping):
        raise ConfigurationError(
            f"`extra` takes prices by the name of the model, found {shown(extra)}.",
        )
    found = cast("Mapping[str, Any]", extra)
    for name, prices in found.items():
        pair = cast("tuple[Any, ...]", prices) if isinstance(prices, (tuple, list)) else ()
        if len(pair) != 2 or not all(map(_is_price, pair)):
            given = shown(cast("object", prices))
            raise ConfigurationError(
                f"`extra[{name!r}]` takes US dollars a million tokens, as (input, output); found {given}.",
            )
    return {name: (prices[0], prices[1]) for name, prices in found.items()}


def _is_price(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_listed(name: str) -> bool:
    """Whether a model is of a provider that the tables may know; an address is none, whatever its models are called."""
    provider, slash, _ = name.partition("/")
    return bool(slash) and (provider in PROVIDERS or provider == _LITELLM)


def _own_cost(usage: Usage, prices: tuple[float, float]) -> float | None:
    if not usage.total_tokens and any(prices):  # the provider told no tokens
        return None
    return (usage.input_tokens * prices[0] + usage.output_tokens * prices[1]) / 1e6


def _counts(usage: Usage) -> dict[str, int]:
    """The counts by genai-prices' names, without those of 0; parts are no larger than their whole."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    further = {
        "cache_read_tokens": cached,
        "cache_write_tokens": min(usage.cache_write_tokens, usage.input_tokens - cached),
        "output_reasoning_tokens": min(usage.reasoning_tokens, usage.output_tokens),
    }
    named = {name: count for name, count in further.items() if count}
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, **named}


def _service_tier(raw: Any) -> dict[str, str] | None:
    """How fast the provider answered, which has its price (OpenAI's `service_tier`)."""
    tier = cast("dict[str, Any]", raw).get("service_tier") if isinstance(raw, dict) else None
    return {"service_tier": tier} if isinstance(tier, str) else None


def _reason(response: Response, *, is_listed: bool) -> str:
    if not response.usage.total_tokens:
        return "its answers come without counts of tokens."
    if not is_listed:
        return "it is not a model of a known provider. Set `Prices(extra={name: (input, output)})`."
    return "genai-prices has no price for it. Set `Prices(extra={name: (input, output)})`, or `update=True`."
