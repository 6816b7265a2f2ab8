from typing import Any

from dragoman.tools.bench.chat_max import kept_up, overloaded

GOOD: dict[str, Any] = {
    "sent": 100, "saved_count": 100, "accepted_count": 100, "errors": {}, "failures": [], "took_s": 5.2,
    "duplicates": 0, "reorderByFrom": 0, "reorderByServerMsgId": 0, "accepted_p99_ms": 9.0, "server_busy": 0,
}  # fmt: skip


def test_a_rate_is_kept_up_with_when_all_is_saved_soon_after() -> None:
    assert kept_up(GOOD, 5.0)
    for worse in ({"saved_count": 99}, {"errors": {"server_busy": 1}}, {"failures": ["closed"]}, {"took_s": 6.1}):
        assert not kept_up(GOOD | worse, 5.0)


def test_beyond_it_only_server_busy_is_in_order() -> None:
    refused = {"errors": {"server_busy": 40}, "server_busy": 40, "saved_count": 60, "accepted_count": 60}
    assert overloaded(GOOD | refused, 1.0)["overload_worse"] == 0
    worse: list[dict[str, Any]] = [
        {"errors": {"server_busy": 40, "internal_error": 1}},
        {"saved_count": 59},
        {"accepted_count": 61},
        {"duplicates": 1},
        {"reorderByFrom": 1},
        {"failures": ["closed"]},
    ]
    for one in worse:
        assert overloaded(GOOD | refused | one, 1.0)["overload_worse"] > 0
