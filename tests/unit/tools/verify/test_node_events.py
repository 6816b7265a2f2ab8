"""What nodes wrote is read whole, also of nodes that were killed while they wrote."""

from pathlib import Path

from dragoman.tools.verify.node_events import EventFile, Kind, NodeEvent, read


def test_events_of_several_nodes_are_read_in_order_of_time(tmp_path: Path) -> None:
    paths = [tmp_path / "n1.events", tmp_path / "n2.events"]
    for at, path in enumerate(paths):
        file = EventFile(path)
        file.write(NodeEvent(2.0 - at, Kind.BEGAN, f"n{at}", 1))
        file.write(NodeEvent(4.0 - at, Kind.GIVEN, f"n{at}", 1, job="j", attempt=1, session="s", index=0, turn="t"))
        file.close()
    assert [event.at for event in read(paths)] == [1.0, 2.0, 3.0, 4.0]
    assert [event.at for event in read(paths, since=2.5)] == [3.0, 4.0]


def test_half_a_line_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "n1.events"
    file = EventFile(path)
    file.write(NodeEvent(1.0, Kind.BEGAN, "n1", 1))
    file.close()
    with path.open("ab") as end:
        end.write(b'{"at":2.0,"ki')
    assert [event.kind for event in read([path])] == [Kind.BEGAN]


def test_a_node_that_has_written_nothing_saw_nothing(tmp_path: Path) -> None:
    assert read([tmp_path / "n9.events"]) == []
