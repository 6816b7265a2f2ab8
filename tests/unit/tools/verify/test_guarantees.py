"""The page of guarantees says what was measured, and nothing else."""

from typing import Any

from dragoman.tools.verify.guarantees import page
from dragoman.tools.verify.rows import Row
from dragoman.tools.verify.run import Order, Outcome, told_settings
from dragoman.tools.verify.settings import Setup
from dragoman.tools.verify.table import COLUMNS, as_json

HELD = Row("node-kill", "node killed -9", 3, 100, 100, recovery={"its jobs on other nodes": 0.314})
FORGOT = Row("redis-kill-everysec", "Redis killed -9, fsync every second", 2, 50, 48, forgiven=2)
BROKEN = Row("link-cut", "link to Redis cut", 1, 10, 9, lost=1, findings=("seed 4: lost: m1 of 7",))
ABSENT = Row("master-kill", "Cluster master killed -9", absent="needs --redis cluster")


def found(*rows: Row, setup: Setup | None = None) -> dict[str, Any]:
    order = Order(setup or Setup(), (), seed=4, repeat=2)
    return as_json(rows, told_settings(order, Outcome(list(rows), 125.0, None)))


def test_every_row_is_a_line_with_as_many_cells_as_there_are_columns() -> None:
    text = page([found(HELD, FORGOT, ABSENT)], 2.1)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.count("|") for line in lines] == [len(COLUMNS) + 1] * 5
    assert "| node killed -9 | 3 | 100 | 100 | 0 | 0 | 0 | 0 | its jobs on other nodes 0.31 s | holds |" in lines
    assert "needs --redis cluster | not here |" in text


def test_what_redis_may_forget_is_told_apart_from_a_loss() -> None:
    text = page([found(FORGOT)], 1)
    assert "| 0 + 2 in class |" in text
    assert "0 of them lost; 2 more lost within the durability class" in text
    assert "every promise held" in text


def test_a_broken_promise_is_on_the_page_in_words() -> None:
    text = page([found(HELD, BROKEN)], 1)
    assert "1 lines with a broken promise" in text
    assert "- link to Redis cut: seed 4: lost: m1 of 7" in text


def test_it_says_what_it_was_measured_on_and_how_to_do_it_again() -> None:
    one, other = found(HELD), found(HELD, setup=Setup("cluster", "postgres"))
    text = page([one, other], 30)
    assert f"Commit `{one['commit']}`" in text
    assert one["machine"]["cpu"] in text
    assert "## One Redis, SQLite" in text
    assert "## Redis Cluster, PostgreSQL" in text
    assert "seeds 4 to 5" in text
    assert "make soak" in text
