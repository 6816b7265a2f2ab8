"""Write a compute node in fifteen lines.

    from dragoman.node import Job, Node, Result

    async def translate(job: Job) -> Result | None:
        heard = await recognise(job.audio, job.src_lang)
        job.partial(heard)
        said = await translate_text(heard, job.tgt_lang)
        return Result(heard, said, await speak(said, job.tgt_lang))

    Node("ws://127.0.0.1:5010/ws/node", translate, languages=["en", "es"], slots=2).serve()

Nothing recognised: return None. A model is not there: raise ModelNotAvailable. No node can do the job: raise JobFailed.
After any other exception the server tries the job once more, on another node. A plain function works too; it runs in a
thread.
"""

from dragoman.node.job import Job, JobFailed, ModelNotAvailable, Result
from dragoman.node.node import Node, NodeRefused, Timing
from dragoman.node.sim import SimSettings, run_sim_node

__all__ = [
    "Job",
    "JobFailed",
    "ModelNotAvailable",
    "Node",
    "NodeRefused",
    "Result",
    "SimSettings",
    "Timing",
    "run_sim_node",
]
