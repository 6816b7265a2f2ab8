import pytest

from dragoman.engines.languages import MULTILINGUAL, NAMES, SHORT, code_of, served


def sorted_languages(*args: object) -> tuple[list[str], list[str], list[str]]:
    hears, writes, speaks = served(*args)  # type: ignore[arg-type]
    return sorted(hears), sorted(writes), sorted(speaks)


def test_one_recognised_language_serves_one_direction() -> None:
    assert sorted_languages({"en"}, {("en", "es"), ("es", "en")}, {"en", "es", "fr"}) == (["en"], ["es"], ["es"])


def test_two_recognised_languages_serve_both_directions() -> None:
    assert sorted_languages({"en", "es"}, {("en", "es"), ("es", "en")}, {"es"}) == (["en", "es"], ["en", "es"], ["es"])


def test_every_declared_pair_can_be_translated() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("en", "de"), ("es", "fr"), ("de", "it")}
    hears, writes, _ = served({"en", "es", "de"}, pairs, ())
    assert all(source == target or (source, target) in pairs for source in hears for target in writes)
    assert (sorted(hears), sorted(writes)) == (["en"], ["de", "es", "fr"])


def test_requested_languages_narrow_the_pairs() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("de", "es")}
    assert sorted_languages({"en", "de"}, pairs, {"fr"}, frozenset(("en", "fr"))) == (["en"], ["fr"], ["fr"])


def test_nothing_is_declared_without_a_common_language() -> None:
    assert sorted_languages({"en"}, {("fr", "de")}, {"de"}) == ([], [], [])


@pytest.mark.parametrize(
    ("told", "code"),
    [("Spanish", "es"), ("spa", "es"), ("es", "es"), ("es-MX", "es"), ("eng_US", "en"), ("klingon", None), ("", None)],
)
def test_language_has_many_names(told: str, code: str | None) -> None:
    assert code_of(told) == code


def test_the_table_names_each_language_once() -> None:
    assert len(NAMES) == len(SHORT) > 60
    assert NAMES["nb"] == "Norwegian Bokmål"
    assert {"en", "es", "zh"} <= MULTILINGUAL <= set(NAMES)
