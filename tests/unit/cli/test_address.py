import pytest

from dragoman.cli.address import authority


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("127.0.0.1", "127.0.0.1:5010"),
        ("0.0.0.0", "127.0.0.1:5010"),
        ("::", "127.0.0.1:5010"),
        ("::1", "[::1]:5010"),
        ("example.com", "example.com:5010"),
    ],
)
def test_what_listens_is_found_from_this_machine(host: str, found: str) -> None:
    assert authority(host, 5010) == found
