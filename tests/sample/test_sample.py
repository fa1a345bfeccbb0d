"""The bundled example."""

import sys
from datetime import date
from types import ModuleType

import pytest

from fimlsp.sample import sample


def test_the_cursor_stands_in_an_empty_line_inside_a_loop() -> None:
    snapshot = sample()
    assert snapshot.before(40).endswith("for order in orders:\n        ")
    assert snapshot.rest_of_line() == ""


def test_a_right_completion_makes_the_example_work(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = sample()
    body = "if not order.cancelled:\n            revenue[order.day] += order.total()"
    source = snapshot.before(snapshot.cursor) + body + snapshot.after(len(snapshot.text))
    orders = ModuleType("orders")
    monkeypatch.setitem(sys.modules, "orders", orders)  # dataclasses look their module up
    exec(compile(source, snapshot.path, "exec", dont_inherit=True), orders.__dict__)

    day = date(2024, 1, 2)
    kept = orders.Order("a", day, (orders.Item("pen", 2, 3),))
    cancelled = orders.Order("b", day, (orders.Item("ink", 1, 9),), cancelled=True)
    assert orders.revenue_by_day([kept, cancelled]) == {day: 6}
