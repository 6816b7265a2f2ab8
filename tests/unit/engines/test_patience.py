from dragoman.engines.patience import NO_JOB_S, left_s, within


def test_a_job_knows_how_long_it_has_and_others_have_half_a_minute() -> None:
    assert left_s() == NO_JOB_S
    with within(5):
        assert 4 < left_s() <= 5
        with within(-1):
            assert left_s() == 0
        assert left_s() > 4
    assert left_s() == NO_JOB_S
