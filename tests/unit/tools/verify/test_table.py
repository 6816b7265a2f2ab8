"""The table for people, and the same as JSON for programs."""

from io import StringIO

from rich.console import Console

from dragoman.tools.verify import table
from dragoman.tools.verify.rows import Row

HELD = Row("node-kill", "node killed -9", 2, 10, 10, recovery={"its jobs on other nodes": 0.25})
BROKEN = Row("link-cut", "link to Redis cut", 1, 10, 9, lost=1, findings=tuple(f"lost: m{n}" for n in range(20)))
ABSENT = Row("master-kill", "Cluster master killed -9", absent="needs --redis cluster")


def printed(*rows: Row) -> str:
    console = Console(width=160, record=True, file=StringIO())
    table.show(rows, "title", console)
    return console.export_text()


def test_a_fault_is_a_line_and_its_recovery_is_in_it() -> None:
    (line,) = [line for line in printed(HELD).splitlines() if "node killed" in line]
    assert " ".join(line.split()) == "node killed -9 2 10 10 0 0 0 0 its jobs on other nodes 0.25 s holds"


def test_a_broken_promise_is_told_in_words_below_the_table_and_many_are_counted() -> None:
    text = printed(HELD, BROKEN)
    assert "BROKEN" in text
    assert "link to Redis cut: lost: m0" in text
    assert f"link to Redis cut: and {20 - table.MOST_FINDINGS} more" in text


def test_what_cannot_be_had_here_says_what_it_needs() -> None:
    (line,) = [line for line in printed(ABSENT).splitlines() if "master" in line]
    assert "needs --redis cluster" in line
    assert "not here" in line


def test_the_file_has_the_parts_of_every_bench_and_the_rows() -> None:
    found = table.as_json([HELD, BROKEN, ABSENT], {"seed": 1})
    assert found.keys() == {"commit", "machine", "settings", "figures", "ratios", "rows"}
    assert (found["figures"]["told"], found["figures"]["kept"], found["figures"]["broken"]) == (20, 19, 1)
    assert found["figures"]["recovery_node_kill_its_jobs_on_other_nodes_s"] == 0.25
    assert found["ratios"]["kept_of_told"] == 0.95
    assert [row["verdict"] for row in found["rows"]] == ["holds", "BROKEN", "not here"]
