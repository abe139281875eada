"""The timeline of a run (`web/timeline.py`)."""

from __future__ import annotations

from typing import Any

from ferrule.approval.question import Decision
from ferrule.runs.story import Beat, CallBeat
from ferrule.values.calls.call import ToolResult
from ferrule.values.conversation.exchange import Usage
from ferrule.web.timeline import grouped_steps, timeline


def call(name: str, begun: float | None, ended: float | None, **more: Any) -> CallBeat:
    result = None
    if ended is not None:
        result = ToolResult(name, "x")
    return CallBeat(
        name=name,
        begun=begun is not None,
        begun_at=begun,
        ended_at=ended,
        **{"result": result, **more},
    )


def beat(number: int, begun: float | None, at: float, *calls: CallBeat, **more: Any) -> Beat:
    return Beat(
        slot=str(number),
        first=number * 10,
        number=number,
        begun_at=begun,
        at=at,
        calls=list(calls),
        usage=Usage(10, 2, calls=1),
        cost=0.5,
        **{"model": "m", **more},
    )


def failed(name: str, begun: float, ended: float, text: str = "no") -> CallBeat:
    return call(name, begun, ended, result=ToolResult(name, text, is_error=True))


def shown(rows: Any) -> list[tuple[str, int, float | None]]:
    return [(row.name, row.depth, row.took_s) for row in rows]


def test_models_calls_and_agents_inside_are_a_tree_with_durations() -> None:
    inner = beat(0, 104.0, 106.0, call("look", 106.0, 107.0))
    line = timeline(
        [beat(0, None, 102.0, call("ask", 103.0, 109.0, inside=[inner]))],
        100.0,
        None,
    )
    assert shown(line.rows) == [("m", 0, 2.0), ("ask", 1, 6.0), ("m", 2, 2.0), ("look", 3, 1.0)]
    assert line.whole_s == 9.0
    for row in line.rows:
        for bar in row.bars:
            assert 0 <= bar.left <= bar.left + bar.width <= 100.001


def test_a_night_of_waiting_does_not_hide_the_work() -> None:
    night = 36_000.0
    waited = call("pay", 10.0 + night, 12.0 + night)
    waited.decisions.append(Decision("q", "approve", via="web", at=10.0 + night))
    line = timeline([beat(0, 0.0, 10.0, waited)], 0.0, None)
    model, pay = line.rows
    assert pay.waited_s == night
    assert pay.took_s == 2.0
    assert model.bars[0].width > 50
    assert [seconds for _, _, seconds in line.pauses] == [night]


def test_the_decision_of_a_rule_is_no_wait() -> None:
    ruled = call("pay", 5.0, 6.0)
    ruled.decisions.append(Decision("q", "approve", via="policy", at=5.0))
    ruled.decisions.append(Decision("q", "approve", via="grant:q1", at=5.0))
    assert timeline([beat(0, 0.0, 1.0, ruled)], 0.0, None).rows[1].waited_s == 0


def test_a_call_at_work_ends_now_and_has_no_duration() -> None:
    line = timeline([beat(0, 0.0, 1.0, call("slow", 1.0, None))], 0.0, 21.0)
    [bar] = line.rows[1].bars
    assert (line.rows[1].took_s, bar.ended) == (None, None)
    assert bar.width > 90


def test_the_same_failure_again_is_one_row_with_the_sum() -> None:
    beats = [
        beat(n, n * 2.0, n * 2.0 + 1, failed("search", n * 2 + 1, n * 2 + 2)) for n in range(4)
    ]
    beats.append(beat(4, 8.0, 9.0, failed("search", 9.0, 10.0, "something else")))
    line = timeline(beats, 0.0, None)
    assert [(row.name, row.times) for row in line.rows] == [
        ("m", 4),
        ("search", 4),
        ("m", 1),
        ("search", 1),
    ]
    assert (line.rows[0].usage.total_tokens, line.rows[0].cost) == (48, 2.0)
    assert [len(group) for group in grouped_steps(beats)] == [4, 1]


def test_only_steps_in_which_nothing_else_happened_are_grouped() -> None:
    decided = failed("search", 1.0, 2.0)
    decided.decisions.append(Decision("q", "approve"))
    for other in (
        beat(1, 2.0, 3.0, failed("search", 3.0, 4.0), text="I try again."),
        beat(1, 2.0, 3.0, failed("search", 3.0, 4.0), call("look", 3.0, 4.0)),
        beat(1, 2.0, 3.0, decided),
        beat(1, 2.0, 3.0, call("search", 3.0, None)),
        beat(1, 2.0, 3.0),
    ):
        first = beat(0, 0.0, 1.0, failed("search", 1.0, 2.0))
        assert [len(group) for group in grouped_steps([first, other])] == [1, 1]
    gone = [beat(number, None, 1.0, error="no answer") for number in range(3)]
    assert [len(group) for group in grouped_steps(gone)] == [3]


def test_steps_without_times_have_no_bars() -> None:
    assert timeline([], 0.0, None).rows == []
    assert timeline([Beat(slot="0", first=0, number=0)], 0.0, 5.0).rows[0].bars == []
