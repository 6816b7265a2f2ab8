"""Text jobs: the translation of one text, asked for by a room or by chat.

A text job is a job like any other: bound to its request, placed, recorded, failed over and explained. It has no turn
and no release window, and goes to any node that serves its pair by text. An attempt gets half of the time that is left.
If no node serves the pair, the job fails at once with NO_AVAILABLE_NODE.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from dragoman.domain.job import Outcome
from dragoman.domain.job_signals import End
from dragoman.domain.placement import NoNode, Turn
from dragoman.protocol import ids
from dragoman.protocol.audio import NO_AUDIO, OPUS
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.node import JobAssign, NodePartial
from dragoman.protocol.session import Pipeline
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.job_request import JobRequest, TurnQueue
from dragoman.services.speech.messages import needs_of

MAX_VOCABULARY = 100


@dataclass(frozen=True, slots=True)
class TextRequest:
    request_id: str  # equal for equal requests, on every instance: only one of them becomes a job
    asker: str  # `session_id` on the wire: the id of the room, or `chat`
    kind: TextKind
    text: str
    src_lang: str  # `auto`: the node detects it
    tgt_lang: str
    timeout_ms: int
    context_text: str = ""  # what was said before
    vocabulary: tuple[str, ...] = ()  # names and terms that the text may contain
    voice: bool = False  # the translation should be spoken, too
    tenant: str = "default"
    account: str = ""  # under which the job is counted; '' = that of the asker
    trace_id: str = ""


TextListener = Callable[[TextRequest, End], None]


class TextJobs:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def translate(self, request: TextRequest, listener: TextListener) -> str:
        """Start a job and return its id. `listener` is called once, after this call has returned.

        The outcome of the end:
        `ok`         `result` has `text_translated`, and `tts_audio` if a voice was asked for and the node has one
        `empty`      the node answered without a translation
        `cancelled`  by `cancel`, or, with the code DUPLICATE_REQUEST, because another job has this request
        `failed`, `expired`  with a code and a message
        """
        assignment = _assignment(request)
        if self._dispatcher.is_full:
            end = End(Outcome.FAILED, ErrorCode.NODE_OVERLOADED, "too many jobs wait for a node")
            asyncio.get_running_loop().call_soon(listener, request, end)
            return assignment.job_id
        queue = TurnQueue(Turn(""))
        self._dispatcher.take(
            JobRequest(
                job_id=assignment.job_id,
                request_id=request.request_id,
                listener=_JobListener(request, listener),
                assignment=assignment,
                cut_at=monotonic(),
                turn_queue=queue,
                position=queue.join(),
                ends_turn=True,
                audio_ms=0,
                needs=needs_of(assignment.pipeline),
                tenant=request.tenant,
                account=request.account or request.asker,
                text_kind=request.kind,
                timeout_ms=request.timeout_ms,
            )
        )
        return assignment.job_id

    def cancel(self, asker: str, reason: str) -> None:
        """Cancel all jobs of an asker. Their listeners are called."""
        self._dispatcher.cancel_session(asker, reason)


class _JobListener:
    """The listener of the job: only its end matters."""

    def __init__(self, request: TextRequest, listener: TextListener) -> None:
        self._request, self._listener = request, listener

    def job_waits(self, request: JobRequest, why: NoNode) -> None: ...

    def job_dispatched(self, request: JobRequest, node_id: str, attempt: int) -> None: ...

    def job_accepted(self, request: JobRequest) -> None: ...

    def job_partial(self, request: JobRequest, partial: NodePartial) -> None: ...

    def job_moved(self, request: JobRequest) -> None: ...

    def job_ended(self, request: JobRequest, end: End) -> None:
        self._listener(self._request, end)


def _assignment(request: TextRequest) -> JobAssign:
    return JobAssign(
        job_id=ids.job_id(),
        attempt_id=1,
        session_id=request.asker,
        utterance_index=0,
        src_lang=request.src_lang,
        tgt_lang=request.tgt_lang,
        pipeline=Pipeline(use_asr=False, use_nmt=True, use_tts=request.voice),
        audio=NO_AUDIO,
        audio_format=OPUS,
        sample_rate=16_000,
        trace_id=request.trace_id or ids.trace_id(),
        context_text=request.context_text or None,
        text=request.text,
        vocabulary=list(request.vocabulary[:MAX_VOCABULARY]) or None,
    )
