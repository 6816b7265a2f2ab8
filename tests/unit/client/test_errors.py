from dragoman.client import SessionError, SessionLost, SessionOver, Unreachable


def test_an_error_says_what_happened_and_has_a_code_to_compare() -> None:
    error = SessionError("JOB_TIMEOUT", "the job took too long", 4)
    assert str(error) == "utterance 4: the job took too long (JOB_TIMEOUT)"
    assert (error.code, error.message, error.index) == ("JOB_TIMEOUT", "the job took too long", 4)


def test_every_error_of_a_session_is_one_of_its_tree() -> None:
    for error in (Unreachable("nobody"), SessionLost("gone"), SessionOver()):
        assert isinstance(error, SessionError)
        assert error.index is None
        assert error.code in str(error)
