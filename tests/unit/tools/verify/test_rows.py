"""Rows of several rounds become one: counts add up, the slowest recovery counts, nothing broken is forgotten."""

from dragoman.tools.verify.rows import Row, merged


def test_rounds_of_one_fault_become_one_row() -> None:
    first = Row("node-kill", "node killed -9", times=1, told=10, kept=10, recovery={"moved": 0.5})
    second = Row(
        "node-kill", "node killed -9", times=2, told=20, kept=19, lost=1, recovery={"moved": 0.7}, findings=("x",)
    )
    other = Row("none", "no fault", told=5, kept=5)
    node, healthy = merged([first, other, second])
    assert (node.times, node.told, node.kept, node.lost) == (3, 30, 29, 1)
    assert node.recovery == {"moved": 0.7}
    assert not node.holds
    assert healthy == other


def test_a_fault_that_was_done_in_one_of_two_setups_is_not_absent() -> None:
    done = Row("master-kill", "Cluster master killed -9", times=1)
    absent = Row("master-kill", "Cluster master killed -9", absent="needs --redis cluster")
    assert merged([absent, done])[0].absent == ""
    assert merged([absent, absent])[0].absent == "needs --redis cluster"
