"""What a node's job_result means: whether it counts, and how its job ends by it. For who drives or watches the job."""

from dragoman.domain.job import Outcome
from dragoman.domain.pool import AUTO
from dragoman.protocol.codec import is_final, reason_of
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.node import JobAssign, JobResult
from dragoman.services.speech.order import End

_EMPTY_REASONS = frozenset(EmptyReason)
MAX_REASON = 500  # characters of a node's failure that are recorded and sent on


def counts(result: JobResult, node_id: str, attempt: int) -> bool:
    """By the node that has the job, to its attempt of now; that there was nothing to do is said of the job as such."""
    if result.node_id != node_id:
        return False
    return result.attempt_id == attempt or reason_of(result.extra) == EmptyReason.NO_TEXT_ASSIGNED


def may_be_retried(result: JobResult) -> bool:
    """Whether another node could do better: the job failed, and not for a reason that lies in the job itself."""
    return not result.success and (result.error is None or not is_final(result.error))


def is_untranslated(result: JobResult, assignment: JobAssign) -> bool:
    """Whether there is text but no translation, where one was asked for. With `auto` the languages may be the same."""
    wanted = assignment.pipeline.use_nmt and assignment.src_lang not in (assignment.tgt_lang, AUTO)
    text, translated = (result.text_asr or "").strip(), (result.text_translated or "").strip()
    return wanted and result.success and bool(text) and not translated and reason_of(result.extra) not in _EMPTY_REASONS


def end_by(result: JobResult, node_id: str) -> End:
    if not result.success:
        code = result.error.code if result.error is not None else ErrorCode.PROCESSING_ERROR
        why = result.error.message[:MAX_REASON] if result.error is not None else "the node gave no reason"
        return End(Outcome.FAILED, code, why, result, node_id)
    silent = not (result.text_asr or result.text_translated or len(result.tts_audio) > 2)
    outcome = Outcome.EMPTY if silent or reason_of(result.extra) in _EMPTY_REASONS else Outcome.OK
    return End(outcome, "", "", result, node_id)
