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
_PRICED_CALLS = {
    "web_search": "web_searches",
    "file_search": "storage_searches",
    "code_execution": "code_executions",
}
"""The tools of providers that have a price for each call, with genai-prices' names."""
_LITELLM = "litellm"
"""LiteLLM's names of models hold the provider, and genai-prices reads them."""


class Prices:
    """Prices of models that do not report their cost. Needs `pip install 'ferrule[prices]'`.

    ```python
    configure(prices=Prices())
    configure(prices=Prices(extra={"my-model": (0.5, 2.0)}))
    ```
    `extra` has prices of your own, by the name of the model with or without its provider, as
    (input, output) in US dollars per million tokens; they come first. The others are those of the
    installed genai-prices; `update=True` downloads newer ones now and each hour, an address does so
    from there. An answer of an unknown model has no cost, which is logged once for each model.
    """

    @checks_keywords
    def __init__(
        self, *, update: bool | str = False, extra: Mapping[str, tuple[float, float]] | None = None
    ) -> None:
        self._extra = _checked(extra or {})
        self._update = update
        self._tables: Any = None
        self._has_tables = find_spec("genai_prices") is not None
        self._unknown: set[str] = set()
        self._lock = threading.Lock()
        if not self._has_tables and (update or not self._extra):
            raise ConfigurationError(
                "`Prices` needs genai-prices: pip install 'ferrule[prices]'. "
                "Without it, give all prices: `extra={...}`."
            )

    def waits(self, response: Response, name: str) -> bool:
        """Whether `cost_of` would load the tables first, which takes long."""
        if self._tables is not None or not self._has_tables:
            return False
        return self._own_prices(response, name) is None and _is_listed(name)

    def cost_of(self, response: Response, name: str) -> float | None:
        """The cost in US dollars of an answer of the model `name` that came now.

        None if it is unknown.
        """
        prices = self._own_prices(response, name)
        if prices is not None:
            return _own_cost(response.usage, prices)
        is_listed = _is_listed(name)
        cost = None
        if is_listed and response.usage.total_tokens:
            cost = self._listed_cost(response, name)
        if cost is None and name not in self._unknown:
            self._unknown.add(name)
            reason = _reason(response, is_listed=is_listed)
            _log.warning("The cost of %s is unknown: %s", name, reason, extra={"model": name})
        return cost

    def _own_prices(self, response: Response, name: str) -> tuple[float, float] | None:
        """The prices in `extra` of the model that was asked, or of the one that answered."""
        without_provider = name.partition("/")[2]
        for model in (name, without_provider, response.model):
            if model in self._extra:
                return self._extra[model]
        return None

    def _listed_cost(self, response: Response, name: str) -> float | None:
        tables = self._load()
        if tables is None:
            return None
        provider, _, model = name.partition("/")
        counts = tables.Usage(**_counts(response.usage))
        # The name that was asked for may be an alias, so the one that answered comes first.
        for candidate in dict.fromkeys(filter(None, (response.model, model))):
            try:
                priced = tables.calc_price(
                    counts,
                    candidate,
                    provider_id=provider,
                    genai_request_timestamp=datetime.now(UTC),
                    price_context=_service_tier(response.raw),
                )
            except (LookupError, ValueError, TypeError, ArithmeticError):
                continue  # the model is unknown, or the counts do not fit its prices
            prices = priced.model_price
            # A model that is paid by the month is listed without prices, as if it were free.
            is_subscription = prices.input_mtok is None and prices.output_mtok is None
            if not is_subscription:
                return float(priced.total_price)
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
        options: dict[str, str] = {}
        if isinstance(self._update, str):
            options["url"] = self._update
        tables.UpdatePrices(**options).start()

    def __repr__(self) -> str:
        options: list[str] = []
        if self._update:
            options.append(f"update={self._update!r}")
        if self._extra:
            options.append(f"extra={self._extra!r}")
        return f"Prices({', '.join(options)})"


def _checked(extra: Any) -> dict[str, tuple[float, float]]:
    if not isinstance(extra, Mapping):
        raise ConfigurationError(
            f"`extra` takes prices by the name of the model, found {shown(extra)}."
        )
    checked: dict[str, tuple[float, float]] = {}
    for name, prices in cast("Mapping[str, Any]", extra).items():
        if not _is_pair_of_prices(prices):
            raise ConfigurationError(
                f"`extra[{name!r}]` takes US dollars per million tokens, as (input, output); "
                f"found {shown(prices)}."
            )
        checked[name] = (prices[0], prices[1])
    return checked


def _is_pair_of_prices(value: Any) -> bool:
    if not isinstance(value, (tuple, list)):
        return False
    pair = cast("tuple[Any, ...]", value)
    return len(pair) == 2 and all(map(_is_price, pair))


def _is_price(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_listed(name: str) -> bool:
    """Whether a model belongs to a provider that the tables may know.

    The address of a server does not, whatever its models are called.
    """
    provider, slash, _ = name.partition("/")
    return bool(slash) and (provider in PROVIDERS or provider == _LITELLM)


def _own_cost(usage: Usage, prices: tuple[float, float]) -> float | None:
    if not usage.total_tokens and any(prices):  # the provider sent no counts
        return None
    return (usage.input_tokens * prices[0] + usage.output_tokens * prices[1]) / 1e6


def _counts(usage: Usage) -> dict[str, int]:
    """The counts by genai-prices' names, without zeros; no part is larger than its whole."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    further = {
        "cache_read_tokens": cached,
        "cache_write_tokens": min(usage.cache_write_tokens, usage.input_tokens - cached),
        "output_reasoning_tokens": min(usage.reasoning_tokens, usage.output_tokens),
    }
    named = {name: count for name, count in further.items() if count}
    for kind, name in _PRICED_CALLS.items():
        if usage.provider_calls.get(kind):
            named[name] = usage.provider_calls[kind]
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, **named}


def _service_tier(raw: Any) -> dict[str, str] | None:
    """How fast the provider answered, which has its price (OpenAI's `service_tier`)."""
    if not isinstance(raw, dict):
        return None
    tier = cast("dict[str, Any]", raw).get("service_tier")
    if not isinstance(tier, str):
        return None
    return {"service_tier": tier}


def _reason(response: Response, *, is_listed: bool) -> str:
    if not response.usage.total_tokens:
        return "its answers come without counts of tokens."
    if not is_listed:
        return "it is not a model of a known provider. Set `Prices(extra={name: (input, output)})`."
    return (
        "genai-prices has no price for it. "
        "Set `Prices(extra={name: (input, output)})`, or `update=True`."
    )
