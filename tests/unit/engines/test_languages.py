import pytest

from dragoman.engines.languages import MULTILINGUAL, NAMES, SHORT, code_of, promise


def served(*args: object) -> tuple[list[str], list[str], list[str]]:
    hears, writes, speaks = promise(*args)  # type: ignore[arg-type]
    return sorted(hears), sorted(writes), sorted(speaks)


def test_who_hears_english_and_translates_both_ways_serves_one_way() -> None:
    assert served({"en"}, {("en", "es"), ("es", "en")}, {"en", "es", "fr"}) == (["en"], ["es"], ["es"])


def test_who_hears_both_serves_both_and_needs_no_pair_of_one_language_with_itself() -> None:
    assert served({"en", "es"}, {("en", "es"), ("es", "en")}, {"es"}) == (["en", "es"], ["en", "es"], ["es"])


def test_what_is_promised_can_be_done_in_every_combination() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("en", "de"), ("es", "fr"), ("de", "it")}
    hears, writes, _ = promise({"en", "es", "de"}, pairs, ())
    assert all(source == target or (source, target) in pairs for source in hears for target in writes)
    assert (sorted(hears), sorted(writes)) == (["en"], ["de", "es", "fr"])


def test_languages_asked_for_narrow_it() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("de", "es")}
    assert served({"en", "de"}, pairs, {"fr"}, frozenset(("en", "fr"))) == (["en"], ["fr"], ["fr"])


def test_nothing_in_common_is_no_promise() -> None:
    assert served({"en"}, {("fr", "de")}, {"de"}) == ([], [], [])


@pytest.mark.parametrize(
    ("told", "code"),
    [("Spanish", "es"), ("spa", "es"), ("es", "es"), ("es-MX", "es"), ("eng_US", "en"), ("klingon", None), ("", None)],
)
def test_a_language_is_known_by_many_names(told: str, code: str | None) -> None:
    assert code_of(told) == code


def test_the_table_names_each_language_once() -> None:
    assert len(NAMES) == len(SHORT) > 60
    assert NAMES["nb"] == "Norwegian Bokmål"
    assert {"en", "es", "zh"} <= MULTILINGUAL <= set(NAMES)
