from dragoman.node.outbox import Outbox


def test_a_result_is_written_again_until_it_was_read() -> None:
    outbox = Outbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    assert outbox.again(now=1) == [b"one"]
    assert outbox.again(now=2) == [b"one"]
    outbox.read(outbox.last_mark, now=3)
    assert outbox.again(now=3) == []


def test_what_was_read_lingers_a_moment_in_case_its_reader_died() -> None:
    outbox = Outbox(keep_s=30, linger_s=2)
    outbox.read(outbox.add(b"one", now=0), now=1)
    assert outbox.again(now=2.9) == [b"one"]
    assert outbox.again(now=3) == []
    assert outbox.lost == 0


def test_a_mark_covers_everything_before_it_and_nothing_after() -> None:
    outbox = Outbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    second = outbox.add(b"two", now=0)
    outbox.add(b"three", now=0)
    outbox.read(second, now=1)
    assert outbox.again(now=1) == [b"three"]
    assert not outbox.all_read


def test_what_nobody_read_in_time_is_given_up_and_counted() -> None:
    outbox = Outbox(keep_s=30, linger_s=2)
    outbox.add(b"one", now=0)
    outbox.add(b"two", now=10)
    assert outbox.again(now=30) == [b"two"]
    assert outbox.lost == 1


def test_the_oldest_go_when_there_is_too_much() -> None:
    outbox = Outbox(max_bytes=10)
    for text in (b"11111", b"22222", b"33333"):
        outbox.add(text, now=0)
    assert outbox.again(now=0) == [b"22222", b"33333"]
    assert outbox.lost == 1
    assert len(outbox) == 2


def test_an_empty_outbox_has_been_read() -> None:
    assert Outbox().all_read


def test_an_outbox_has_been_read_when_its_last_result_was() -> None:
    outbox = Outbox()
    seen = []
    for mark in (outbox.add(b"one", now=0), outbox.add(b"two", now=0)):
        seen.append(outbox.all_read)
        outbox.read(mark, now=1)
    assert [*seen, outbox.all_read] == [False, False, True]
