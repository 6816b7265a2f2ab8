"""What `bench load` is asked to do. The defaults are the full run; `QUICK` shows that it runs at all."""

from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["sockets", "messages", "jobs", "half", "target", "storm", "above"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Settings:
    parts: tuple[Part, ...] = PARTS
    instances: int = 2  # of all parts but `sockets`, which is of one
    seconds: float = 8.0  # of each measurement
    warmup_s: float = 2.0
    minutes: float = 10.0  # of `half`
    share: float = 0.5  # of each alone that `half` asks for; less where those who make the load need the same cores
    hold_s: float = 20.0  # idle sockets: long enough for their owners to be renewed
    most_sockets: int = 50_000  # fewer where the files of a process do not allow it
    first_rate: float = 800.0  # messages a second, from which they rise
    most_steps: int = 12
    sessions: int = 200
    nodes: int = 20
    users: int = 200
    target_sockets: int = 10_000
    target_messages_per_s: float = 2000.0
    target_jobs_per_s: float = 200.0
    storm_sockets: int = 10_000
    storms: int = 3  # of each kind
    storm_jobs_per_s: float = 200.0
    storm_patience_s: float = 60.0
    healthy_clients: int = 400  # idle sockets while there is too much of something else
    recovery_patience_s: float = 30.0
    # What a part assumes when the one that finds it was left out.
    usual_sockets: int = 20_000
    usual_messages_per_s: float = 1500.0
    usual_jobs_per_s: float = 1000.0


QUICK = Settings(
    seconds=2.0,
    warmup_s=0.5,
    minutes=0.1,
    hold_s=1.0,
    most_sockets=200,
    first_rate=100.0,
    most_steps=4,
    sessions=20,
    nodes=4,
    users=20,
    target_sockets=200,
    target_messages_per_s=100.0,
    target_jobs_per_s=50.0,
    storm_sockets=200,
    storms=1,
    storm_jobs_per_s=50.0,
    storm_patience_s=20.0,
    healthy_clients=20,
    usual_sockets=200,
    usual_messages_per_s=200.0,
    usual_jobs_per_s=200.0,
)
