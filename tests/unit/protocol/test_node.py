import pytest

from dragoman.protocol.node import advanced_features, slots_of


def test_a_node_of_ours_says_what_it_can() -> None:
    assert advanced_features(4) == ["job_ack", "resume", "reattempt", "drain", "slots:4"]
    assert slots_of(advanced_features(4)) == 4


@pytest.mark.parametrize(
    "features", [None, [], ["slots"], ["slots:"], ["slots:0"], ["slots:-1"], ["slots:x"], ["slots:٣"]]
)
def test_a_node_that_says_no_sensible_number_says_none(features: list[str] | None) -> None:
    assert slots_of(features) is None
