import pytest

from dragoman.engines.engine import NO_JOB_S, Missing, deadline_in, left_s, need_module


def test_all_that_is_missing_is_one_sentence_and_one_line() -> None:
    missing = [
        Missing("The program espeak-ng is not installed", "apt-get install espeak-ng"),
        Missing("The program apertium is not installed", "apt-get install apertium-eng-spa"),
        Missing("The Python package av is not installed", "pip install 'dragoman[local]'"),
        Missing("The Python package pocketsphinx is not installed", "pip install 'dragoman[local]'"),
    ]
    told = Missing.several(missing)
    assert told.remedy == "apt-get install espeak-ng apertium-eng-spa && pip install 'dragoman[local]'"
    assert told.what.startswith("The program espeak-ng is not installed; the program apertium is not installed; the ")


def test_a_module_that_is_not_there_is_named_with_what_installs_it() -> None:
    need_module("json")
    with pytest.raises(Missing, match=r"nowhere_at_all is not installed: pip install 'dragoman\[local\]'"):
        need_module("nowhere_at_all")


def test_a_job_knows_how_long_it_has_and_others_have_half_a_minute() -> None:
    assert left_s() == NO_JOB_S
    with deadline_in(5):
        assert 4 < left_s() <= 5
        with deadline_in(-1):
            assert left_s() == 0
        assert left_s() > 4
    assert left_s() == NO_JOB_S
