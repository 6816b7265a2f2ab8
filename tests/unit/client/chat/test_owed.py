from dragoman.client.chat.owed import Owed
from dragoman.protocol.chat import AckType, receipt

DELIVERED, READ = AckType.DELIVERED, AckType.READ
ALICE, BOB = 1, 2


def all_of(owed: Owed) -> list[bytes]:
    return [frame for _ in range(len(owed)) if (frame := owed.next()) is not None]


def test_what_is_owed_is_said_once_oldest_first() -> None:
    owed = Owed()
    owed.add(DELIVERED, 10, ALICE)
    owed.add(READ, 10, ALICE)
    assert all_of(owed) == [receipt(DELIVERED, 10, ALICE), receipt(READ, 10, ALICE)]
    assert owed.next() is None


def test_after_a_lost_connection_the_highest_read_of_each_sender_is_owed_again() -> None:
    owed = Owed()
    for id, sender in ((11, ALICE), (10, ALICE), (12, BOB)):
        owed.add(DELIVERED, id, sender)
        owed.add(READ, id, sender)
    all_of(owed)
    owed.lost()
    assert all_of(owed) == [receipt(READ, 11, ALICE), receipt(READ, 12, BOB)]


def test_what_waits_already_is_not_owed_twice() -> None:
    owed = Owed()
    owed.add(READ, 10, ALICE)
    owed.lost()
    owed.lost()
    assert all_of(owed) == [receipt(READ, 10, ALICE)]


def test_both_memories_are_bounded_and_the_oldest_go_first() -> None:
    owed = Owed(most=3, remember=1)
    for id in range(10, 14):
        owed.add(DELIVERED, id, ALICE)
    assert all_of(owed) == [receipt(DELIVERED, id, ALICE) for id in (11, 12, 13)]
    for id, sender in ((20, ALICE), (21, BOB), (22, ALICE)):
        owed.add(READ, id, sender)
    all_of(owed)
    owed.lost()
    assert all_of(owed) == [receipt(READ, 22, ALICE)]
