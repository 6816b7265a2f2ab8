from structlog.testing import capture_logs

from dragoman.services.chat.one_phase import Refusals
from dragoman.services.metrics import Metrics


def test_repeated_ids_with_another_body_are_all_counted_and_logged_once_a_minute_for_each_sender() -> None:
    metrics, times = Metrics(), iter([0.0, 1.0, 59.0, 61.0, 61.0])
    refusals = Refusals(metrics, lambda: next(times))
    with capture_logs() as logs:
        for sender in (7, 7, 7, 7, 8):
            refusals.note_other_body(sender, "n", 5)
    assert metrics.chat_other_body.value == 5
    assert [(line["log_level"], line["user"]) for line in logs] == [("warning", 7), ("warning", 7), ("warning", 8)]
