"""The parts of `dragoman verify`: schedule, ledgers, proxies and the table of guarantees."""

from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.domain.chat.shards import shard_of
from dragoman.protocol import audio
from dragoman.tools.verify import pieces, results
from dragoman.tools.verify.environment import SHARDS, Setup
from dragoman.tools.verify.faults import BY_NAME, QUESTIONS, Connection, Injection, Message, Record, recovered
from dragoman.tools.verify.recordings import EventFile, Kind, NodeEvent, Recordings, assignments, read
from dragoman.tools.verify.results import COLUMNS, Row, as_json, merged
from dragoman.tools.verify.run import AFTER_S, BEFORE_S, Order, Outcome, phase, phases, settings_of
from dragoman.tools.verify.soak import page
from dragoman.tools.verify.speech_ledger import SpeechLedger
from dragoman.tools.verify.tcp_proxy import complete, renamed


def node_event(at: float, kind: Kind, job: str) -> NodeEvent:
    return NodeEvent(at, kind, "n", 1, slots=1, job=job, attempt=1, session="s", turn=job)


def others(*events: NodeEvent) -> list[int]:
    """How many other jobs the node had, each time that it was given one."""
    return [one.others for one in assignments(Recordings(list(events)), {}, within_s=1.0)]


def test_a_job_that_is_called_back_before_it_was_begun_takes_no_slot() -> None:
    """It was late, and had been given up: whoever was given its slot may come before the word that calls it back."""
    given, late = node_event(1.0, Kind.GIVEN, "a"), node_event(1.0, Kind.GIVEN, "late")
    assert others(late, given, node_event(1.01, Kind.CANCELLED, "late")) == [0]


def test_a_job_that_was_begun_or_is_called_back_much_later_takes_one() -> None:
    begun, given = node_event(1.0, Kind.GIVEN, "begun"), node_event(1.0, Kind.GIVEN, "a")
    assert others(begun, node_event(1.0, Kind.STARTED, "begun"), given, node_event(1.01, Kind.CANCELLED, "begun")) == [
        0,
        1,
    ]
    assert others(begun, given, node_event(2.5, Kind.CANCELLED, "begun")) == [0, 1]


HELD = Row("node-kill", "node killed -9", 3, 100, 100, recovery={"its jobs on other nodes": 0.314})
FORGOT = Row("redis-kill-everysec", "Redis killed -9, fsync every second", 2, 50, 48, tolerated=2)
BROKEN = Row("link-cut", "link to Redis cut", 1, 10, 9, lost=1, findings=("seed 4: lost: m1 of 7",))
ABSENT = Row("master-kill", "Cluster master killed -9", skipped="needs --redis cluster")


def found(*rows: Row, setup: Setup | None = None) -> dict[str, Any]:
    order = Order(setup or Setup(), (), seed=4, repeat=2)
    return as_json(rows, settings_of(order, Outcome(list(rows), 125.0, None)))


def test_every_row_is_a_line_with_as_many_cells_as_there_are_columns() -> None:
    text = page([found(HELD, FORGOT, ABSENT)], 2.1)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.count("|") for line in lines] == [len(COLUMNS) + 1] * 5
    assert "| node killed -9 | 3 | 100 | 100 | 0 | 0 | 0 | 0 | its jobs on other nodes 0.31 s | holds |" in lines
    assert "needs --redis cluster | skipped |" in text


def test_tolerated_loss_is_reported_apart_from_a_real_one() -> None:
    text = page([found(FORGOT)], 1)
    assert "| 0 + 2 in class |" in text
    assert "0 of them lost; 2 more lost within the durability class" in text
    assert "every promise held" in text


def test_guarantees_page_describes_a_broken_promise() -> None:
    text = page([found(HELD, BROKEN)], 1)
    assert "1 rows with a broken promise" in text
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


NUMBERS = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(NUMBERS, unique=True))
def test_recorded_audio_is_decoded(numbers: list[int]) -> None:
    assert pieces.decode(pieces.sound(numbers)) == numbers


@given(st.lists(NUMBERS, unique=True), st.lists(NUMBERS, unique=True))
def test_pieces_joined_are_a_longer_run(some: list[int], more: list[int]) -> None:
    joined = pieces.sound(some) + pieces.sound(more)
    assert audio.duration_ms(audio.OPUS, joined, 16_000) == pieces.PIECE_MS * (len(some) + len(more))
    assert pieces.decode(joined) == some + more


def test_repeated_piece_is_recorded_twice() -> None:
    assert pieces.decode(pieces.sound([1, 2, 2, 3])) == [1, 2, 2, 3]


@given(st.lists(st.integers(-50, 50)))
def test_numbers_are_written_and_read(numbers: list[int]) -> None:
    assert pieces.of_text(pieces.text(numbers)) == numbers


def test_runs_are_written_short() -> None:
    assert pieces.text([3, 4, 5, 9]) == "3-5 9"


def test_silence_is_written_piece_by_piece() -> None:
    assert pieces.text([-3, -2, 4]) == "-3 -2 4"


def of_shard(shard: int) -> int:
    return next(user for user in range(1, 1000) if shard_of(user, SHARDS) == shard)


def event(kind: Kind, node: str, job: str, at: float) -> NodeEvent:
    return NodeEvent(at, kind, node, 1, job=job)


def test_every_question_is_of_a_fault_there_is() -> None:
    assert QUESTIONS.keys() <= BY_NAME.keys()


def test_the_jobs_of_a_dead_node_have_moved_when_the_last_is_given_to_another() -> None:
    events = [
        event(Kind.GIVEN, "n1", "done", 1.0),
        event(Kind.ENDED, "n1", "done", 2.0),
        event(Kind.GIVEN, "n1", "a", 9.0),
        event(Kind.GIVEN, "n1", "b", 9.5),
        event(Kind.GIVEN, "n2", "a", 10.4),
        event(Kind.GIVEN, "n3", "b", 10.9),
        event(Kind.GIVEN, "n2", "done", 50.0),
    ]
    found = recovered("node-kill", [Injection("n1", injected_at=10.0, repaired_at=11.0)], Record(events=events))
    assert found == {"its jobs on other nodes": 10.9 - 10.0}


def test_a_node_that_died_idle_tells_nothing() -> None:
    assert recovered("node-kill", [Injection("n1", injected_at=10.0)], Record()) == {}


def test_recovery_time_ends_with_the_last_answered_client() -> None:
    messages = [
        Message(1, 9.0, 9.1, 9.2),
        Message(1, 10.5, 10.75),
        Message(2, 10.5, None, 11.5),
        Message(3, 10.5, 19.0),
    ]
    injection = Injection("v1", injected_at=10.0, repaired_at=12.0, users=(1, 2))
    assert recovered("instance-pause", [injection], Record(messages))["clients answered"] == 1.5


def test_clients_are_back_when_the_last_of_them_has_a_connection() -> None:
    users = [Connection(1, 9.0), Connection(1, 10.25), Connection(2, 10.5), Connection(3, 19.0)]
    sessions = [Connection("s-1", 9.5), Connection("s-2", 11.0), Connection("s-2", 15.0)]
    injection = Injection("v1", injected_at=10.0, repaired_at=12.0, users=(1, 2))
    assert recovered("instance-kill", [injection], Record(connections=users)) == {"clients back": 0.5}
    assert recovered("instance-kill", [injection], Record(connections=[*users, *sessions])) == {"clients back": 1.0}


def test_a_shard_is_in_other_hands_when_something_sent_since_is_saved() -> None:
    first, second = of_shard(0), of_shard(1)
    messages = [Message(first, 9.9, 9.95, 10.1), Message(first, 10.1, 10.2, 13.0), Message(second, 10.1, 10.2, 10.3)]
    injection = Injection("v1", injected_at=10.0, repaired_at=12.0, taken_over_at=14.0, shards=(0,))
    found = recovered("instance-kill", [injection], Record(messages))
    assert found == {"shards": 3.0, "jobs": 4.0}


def test_a_redis_that_is_back_counts_until_the_first_accepted() -> None:
    messages = [Message(1, 9.0, 9.5), Message(2, 9.0, 12.25), Message(3, 9.0, 12.5)]
    assert recovered("redis-kill", [Injection("Redis", 10.0, 12.0)], Record(messages)) == {"first accepted": 0.25}


def test_a_database_that_is_back_counts_until_the_first_saved() -> None:
    messages = [Message(1, 9.0, 9.5, 12.75), Message(2, 9.0, 12.25)]
    assert recovered("database-stop", [Injection("SQLite", 10.0, 12.0)], Record(messages)) == {"first saved": 0.75}


def test_recovery_of_a_link_is_measured_by_its_clients() -> None:
    messages = [Message(1, 11.0, 12.125), Message(2, 11.0, 13.0)]
    injection = Injection("v1", 10.0, 12.0, users=(2,))
    assert recovered("link-cut", [injection], Record(messages)) == {"first accepted through it": 1.0}


def test_a_cluster_has_recovered_when_every_shard_accepts() -> None:
    messages = [Message(of_shard(shard), 10.5, 11.0 + shard) for shard in range(SHARDS)]
    assert recovered("master-kill", [Injection("m", 10.0, 12.0)], Record(messages)) == {
        "all shards accept": float(SHARDS)
    }


def test_of_several_strikes_the_slowest_counts() -> None:
    messages = [Message(1, 9.0, 10.5), Message(1, 19.0, 22.0)]
    injections = [Injection("Redis", 9.5, 10.0), Injection("Redis", 19.5, 20.0)]
    assert recovered("redis-kill", injections, Record(messages)) == {"first accepted": 2.0}


def test_rounds_of_one_fault_become_one_row() -> None:
    first = Row("node-kill", "node killed -9", times=1, promised=10, kept=10, recovery={"moved": 0.5})
    second = Row(
        "node-kill", "node killed -9", times=2, promised=20, kept=19, lost=1, recovery={"moved": 0.7}, findings=("x",)
    )
    other = Row("none", "no fault", promised=5, kept=5)
    node, healthy = merged([first, other, second])
    assert (node.times, node.promised, node.kept, node.lost) == (3, 30, 29, 1)
    assert node.recovery == {"moved": 0.7}
    assert not node.holds
    assert healthy == other


def test_a_fault_that_was_done_in_one_of_two_setups_is_not_absent() -> None:
    done = Row("master-kill", "Cluster master killed -9", times=1)
    skipped = Row("master-kill", "Cluster master killed -9", skipped="needs --redis cluster")
    assert merged([skipped, done])[0].skipped == ""
    assert merged([skipped, skipped])[0].skipped == "needs --redis cluster"


def test_the_same_seed_strikes_at_the_same_moments() -> None:
    assert phase(7, "node-kill", 30, 2) == phase(7, "node-kill", 30, 2)


def test_another_seed_strikes_at_others() -> None:
    assert phase(7, "node-kill", 30, 2) != phase(8, "node-kill", 30, 2)


def test_schedule_of_one_fault_is_independent_of_the_others() -> None:
    alone = phases(3, [("link-cut", 2.5)], 0)
    among = phases(3, [("none", 0), ("node-kill", 2), ("link-cut", 2.5)], 0)
    assert among[2] == alone[0]


def test_a_fault_strikes_once_at_least_however_short_the_time() -> None:
    short = phase(1, "instance-kill", 0.1, 6.5)
    assert len(short.injections) == 1
    assert short.load_s >= BEFORE_S + 6.5 + AFTER_S


def test_more_time_means_more_strikes_which_leave_each_other_room() -> None:
    for seed in range(50):
        long = phase(seed, "node-kill", 30, 2)
        moments = [strike.at_s for strike in long.injections]
        assert len(moments) == 14
        assert all(later - earlier >= 0 for earlier, later in pairwise(moments))
        assert moments[0] >= BEFORE_S
        assert moments[-1] + 2 + AFTER_S <= long.load_s + 1e-9


def test_every_strike_draws_for_itself() -> None:
    seeds = {strike.seed for strike in phase(1, "node-kill", 30, 2).injections}
    assert len(seeds) == 14


def test_the_healthy_case_has_load_and_no_strikes() -> None:
    healthy = phase(1, "none", 0, 0)
    assert healthy.injections == ()
    assert healthy.load_s == BEFORE_S + AFTER_S


def test_seconds_beyond_what_each_needs_are_shared_evenly() -> None:
    made = phases(1, [("none", 0), ("node-kill", 2)], 2 * (BEFORE_S + AFTER_S) + 2 + 10)
    assert [one.load_s for one in made] == [BEFORE_S + AFTER_S + 5, BEFORE_S + AFTER_S + 7]


def new_ledger(*, numbered: bool = False) -> SpeechLedger:
    ledger = SpeechLedger()
    ledger.opened("s", "ann", numbered=numbered)
    return ledger


def test_words_are_outstanding_until_they_are_answered() -> None:
    ledger = new_ledger()
    ledger.gave("s", [1, 2])
    assert ledger.sessions["s"].unanswered_pieces() == [1, 2]
    ledger.answered("s", 0, "job", "1-2", backfilled=False)
    assert ledger.sessions["s"].unanswered_pieces() == []
    assert list(ledger.outstanding()) == []


def test_silence_is_not_outstanding() -> None:
    ledger = new_ledger()
    ledger.gave("s", [-1, -2])
    assert ledger.sessions["s"].unanswered_pieces() == []


def test_a_failure_stands_for_the_words_between_its_neighbours() -> None:
    ledger = new_ledger()
    ledger.gave("s", [1, 2, 3, 4])
    ledger.answered("s", 0, "job", "1", backfilled=False)
    ledger.answered("s", 2, "job", "4", backfilled=False)
    ledger.failed("s", 1, "job", "NO_AVAILABLE_NODE", "none")
    assert ledger.sessions["s"].unanswered_pieces() == []


def test_a_failure_stands_for_no_words_of_others() -> None:
    ledger = new_ledger()
    ledger.gave("s", [1, 2, 3, 4])
    ledger.failed("s", 0, "job", "NO_AVAILABLE_NODE", "none")
    ledger.answered("s", 1, "job", "2", backfilled=False)
    ledger.answered("s", 2, "job", "4", backfilled=False)
    assert ledger.sessions["s"].unanswered_pieces() == [3]


def test_an_utterance_with_a_number_is_owed_under_it() -> None:
    ledger = new_ledger(numbered=True)
    ledger.gave("s", [1], index=0)
    ledger.gave("s", [2], index=1)
    ledger.failed("s", 1, "job", "NO_AVAILABLE_NODE", "none")
    assert ledger.sessions["s"].unanswered_pieces() == [1]


def test_an_utterance_that_held_other_words_explains_nothing() -> None:
    ledger = new_ledger()
    ledger.gave("s", [1, 2])
    assert ledger.sessions["s"].unanswered_pieces({0: [1]}) == [2]
    assert ledger.sessions["s"].unanswered_pieces({0: None}) == []


def test_outstanding_messages_are_described() -> None:
    ledger = new_ledger()
    ledger.gave("s", [1, 2])
    (sentence,) = ledger.outstanding()
    assert "ann" in sentence
    assert "1-2" in sentence
    ledger.lost("s", "gone")
    assert list(ledger.outstanding()) == []


HELD_ROW = Row("node-kill", "node killed -9", 2, 10, 10, recovery={"its jobs on other nodes": 0.25})
BROKEN_ROW = Row("link-cut", "link to Redis cut", 1, 10, 9, lost=1, findings=tuple(f"lost: m{n}" for n in range(20)))


def printed(*rows: Row) -> str:
    console = Console(width=160, record=True, file=StringIO())
    results.show(rows, "title", console)
    return console.export_text()


def test_a_fault_is_a_line_and_its_recovery_is_in_it() -> None:
    (line,) = [line for line in printed(HELD_ROW).splitlines() if "node killed" in line]
    assert " ".join(line.split()) == "node killed -9 2 10 10 0 0 0 0 its jobs on other nodes 0.25 s holds"


def test_broken_promises_are_described_below_the_table_and_counted() -> None:
    text = printed(HELD_ROW, BROKEN_ROW)
    assert "BROKEN" in text
    assert "link to Redis cut: lost: m0" in text
    assert f"link to Redis cut: and {20 - results.MAX_FINDINGS} more" in text


def test_unavailable_fault_names_its_requirement() -> None:
    (line,) = [line for line in printed(ABSENT).splitlines() if "master" in line]
    assert "needs --redis cluster" in line
    assert "skipped" in line


def test_the_file_has_the_parts_of_every_bench_and_the_rows() -> None:
    found = results.as_json([HELD_ROW, BROKEN_ROW, ABSENT], {"seed": 1})
    assert found.keys() == {"commit", "machine", "settings", "figures", "ratios", "rows"}
    assert (found["figures"]["promised"], found["figures"]["kept"], found["figures"]["broken"]) == (20, 19, 1)
    assert found["figures"]["recovery_node_kill_its_jobs_on_other_nodes_s"] == 0.25
    assert found["ratios"]["kept_of_promised"] == 0.95
    assert [row["verdict"] for row in found["rows"]] == ["holds", "BROKEN", "skipped"]


PORTS = {11001: 40001, 11002: 40002}
SLOTS = b"*1\r\n*4\r\n:0\r\n:5460\r\n*3\r\n$9\r\n127.0.0.1\r\n:11001\r\n$2\r\nid\r\n*2\r\n$9\r\n127.0.0.1\r\n:11002\r\n"
MOVED = b"-MOVED 1234 127.0.0.1:11002\r\n"
AFTER = b"$5\r\nhello\r\n"


def passed_on(parts: list[bytes]) -> bytes:
    out, tail = b"", b""
    for part in parts:
        whole = tail + part
        told = complete(whole)
        out, tail = out + renamed(whole[:told], PORTS), whole[told:]
    assert tail == b"", "an answer that is whole must not be held back"
    return out


def test_nodes_are_named_by_their_proxies() -> None:
    assert passed_on([SLOTS]) == SLOTS.replace(b"11001", b"40001").replace(b"11002", b"40002")
    assert passed_on([MOVED]) == b"-MOVED 1234 127.0.0.1:40002\r\n"


def test_a_name_is_found_wherever_the_bytes_are_cut() -> None:
    said = SLOTS + MOVED + AFTER
    wanted = passed_on([said])
    for at in range(1, len(said)):
        assert passed_on([said[:at], said[at:]]) == wanted


def test_bytes_that_come_one_at_a_time_come_out_the_same() -> None:
    said = SLOTS + MOVED + AFTER
    assert passed_on([said[at : at + 1] for at in range(len(said))]) == passed_on([said])


def test_other_ports_and_other_words_stay_as_they_are() -> None:
    said = b"+127.0.0.1:11003\r\n$8\r\n:11001\r\n\r\n"
    assert passed_on([said]) == said
