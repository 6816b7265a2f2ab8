from dragoman.domain.track_record import MAX_NODES, RECENT, TrackRecord


def test_failures_in_a_row_are_counted_and_a_success_ends_the_run() -> None:
    record = TrackRecord()
    assert [record.failed("a"), record.failed("a"), record.failed("b")] == [1, 2, 1]
    record.succeeded("a")
    assert record.failed("a") == 1


def test_the_slowness_of_a_node_is_the_90th_percentile_of_its_recent_jobs() -> None:
    record = TrackRecord()
    assert record.slowness("a") is None
    for seconds in range(1, 11):
        record.add_work_time("a", seconds, 1.0)
    assert record.slowness("a") == 9.0
    record.add_work_time("a", 100.0, 10.0)
    assert record.slowness("a") == 10.0


def test_old_jobs_do_not_count_for_the_slowness_of_a_node() -> None:
    record = TrackRecord()
    for seconds in [100.0] * RECENT + [1.0] * RECENT:
        record.add_work_time("a", seconds, 1.0)
    assert record.slowness("a") == 1.0


def test_a_job_without_audio_says_nothing_about_the_slowness_of_its_node() -> None:
    record = TrackRecord()
    record.add_work_time("a", 1.0, 0.0)
    assert record.slowness("a") is None


def test_the_node_used_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    record = TrackRecord()
    for number in range(MAX_NODES):
        record.failed(f"n{number}")
    record.failed("n0")
    record.failed("one more")
    assert len(record) == MAX_NODES
    assert record.failed("n0") == 3
    assert record.failed("n1") == 1


def test_the_loss_of_a_connection_is_news_once() -> None:
    record = TrackRecord()
    assert [record.is_new_loss("a", epoch) for epoch in (5, 5, 4, 6)] == [True, False, False, True]
    assert record.is_new_loss("b", 5)
