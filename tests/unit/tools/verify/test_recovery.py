"""How long things took to go on, from written times alone."""

from dragoman.domain.chat.shards import shard_of
from dragoman.tools.verify.faults import BY_NAME, Blow
from dragoman.tools.verify.node_events import Kind, NodeEvent
from dragoman.tools.verify.recovery import QUESTIONS, Connection, Message, Told, recovered
from dragoman.tools.verify.settings import SHARDS


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
    found = recovered("node-kill", [Blow("n1", struck_at=10.0, mended_at=11.0)], Told(events=events))
    assert found == {"its jobs on other nodes": 10.9 - 10.0}


def test_a_node_that_died_idle_tells_nothing() -> None:
    assert recovered("node-kill", [Blow("n1", struck_at=10.0)], Told()) == {}


def test_of_those_who_were_connected_the_last_to_be_answered_counts() -> None:
    messages = [
        Message(1, 9.0, 9.1, 9.2),
        Message(1, 10.5, 10.75),
        Message(2, 10.5, None, 11.5),
        Message(3, 10.5, 19.0),
    ]
    blow = Blow("v1", struck_at=10.0, mended_at=12.0, users=(1, 2))
    assert recovered("instance-pause", [blow], Told(messages))["clients answered"] == 1.5


def test_clients_are_back_when_the_last_of_them_has_a_connection() -> None:
    users = [Connection(1, 9.0), Connection(1, 10.25), Connection(2, 10.5), Connection(3, 19.0)]
    sessions = [Connection("s-1", 9.5), Connection("s-2", 11.0), Connection("s-2", 15.0)]
    blow = Blow("v1", struck_at=10.0, mended_at=12.0, users=(1, 2))
    assert recovered("instance-kill", [blow], Told(connections=users)) == {"clients back": 0.5}
    assert recovered("instance-kill", [blow], Told(connections=[*users, *sessions])) == {"clients back": 1.0}


def test_a_shard_is_in_other_hands_when_something_sent_since_is_saved() -> None:
    first, second = of_shard(0), of_shard(1)
    messages = [Message(first, 9.9, 9.95, 10.1), Message(first, 10.1, 10.2, 13.0), Message(second, 10.1, 10.2, 10.3)]
    blow = Blow("v1", struck_at=10.0, mended_at=12.0, buried_at=14.0, shards=(0,))
    found = recovered("instance-kill", [blow], Told(messages))
    assert found == {"shards": 3.0, "jobs": 4.0}


def test_a_redis_that_is_back_counts_until_the_first_accepted() -> None:
    messages = [Message(1, 9.0, 9.5), Message(2, 9.0, 12.25), Message(3, 9.0, 12.5)]
    assert recovered("redis-kill", [Blow("Redis", 10.0, 12.0)], Told(messages)) == {"first accepted": 0.25}


def test_a_database_that_is_back_counts_until_the_first_saved() -> None:
    messages = [Message(1, 9.0, 9.5, 12.75), Message(2, 9.0, 12.25)]
    assert recovered("database-stop", [Blow("SQLite", 10.0, 12.0)], Told(messages)) == {"first saved": 0.75}


def test_a_mended_link_is_judged_by_those_who_were_behind_it() -> None:
    messages = [Message(1, 11.0, 12.125), Message(2, 11.0, 13.0)]
    blow = Blow("v1", 10.0, 12.0, users=(2,))
    assert recovered("link-cut", [blow], Told(messages)) == {"first accepted through it": 1.0}


def test_a_cluster_has_recovered_when_every_shard_accepts() -> None:
    messages = [Message(of_shard(shard), 10.5, 11.0 + shard) for shard in range(SHARDS)]
    assert recovered("master-kill", [Blow("m", 10.0, 12.0)], Told(messages)) == {"all shards accept": float(SHARDS)}


def test_of_several_strikes_the_slowest_counts() -> None:
    messages = [Message(1, 9.0, 10.5), Message(1, 19.0, 22.0)]
    blows = [Blow("Redis", 9.5, 10.0), Blow("Redis", 19.5, 20.0)]
    assert recovered("redis-kill", blows, Told(messages)) == {"first accepted": 2.0}
