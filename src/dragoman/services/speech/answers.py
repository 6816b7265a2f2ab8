"""What a node's job_result means: whether it counts, and how its job ends by it. For who drives or watches the job."""

from dragoman.domain.job import Outcome
from dragoman.protocol.codec import reason_of
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.node import JobResult
from dragoman.services.speech.order import End

_EMPTY_REASONS = frozenset(EmptyReason)


def counts(result: JobResult, node_id: str, attempt: int) -> bool:
    """By the node that has the job, to its attempt of now; that there was nothing to do is said of the job as such."""
    if result.node_id != node_id:
        return False
    return result.attempt_id == attempt or reason_of(result.extra) == EmptyReason.NO_TEXT_ASSIGNED


def end_by(result: JobResult, node_id: str) -> End:
    if not result.success:
        code = result.error.code if result.error is not None else ErrorCode.PROCESSING_ERROR
        why = result.error.message if result.error is not None else "the node gave no reason"
        return End(Outcome.FAILED, code, why, result, node_id)
    silent = not (result.text_asr or result.text_translated or len(result.tts_audio) > 2)
    outcome = Outcome.EMPTY if silent or reason_of(result.extra) in _EMPTY_REASONS else Outcome.OK
    return End(outcome, "", "", result, node_id)
