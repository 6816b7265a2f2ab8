from prometheus_client import CollectorRegistry, generate_latest

from dragoman.store.errors import RedisAway, Refused, UnknownOutcome
from dragoman.store.ops import BOUNDS_S, Ops


def exposed(ops: Ops) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ops)
    return generate_latest(registry).decode().splitlines()


def test_operations_are_counted_by_name_and_result() -> None:
    ops = Ops()
    ops["GET"].answered(0.001)
    ops["GET"].answered(0.002)
    ops["push"].failed(RedisAway("away"))
    ops["push"].failed(UnknownOutcome("lost"))
    ops["push"].failed(Refused("ERR no"))
    lines = exposed(ops)
    assert 'scheduler_phase2_redis_op_total{op="GET",result="ok"} 2.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="away"} 1.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="unknown"} 1.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="error"} 1.0' in lines


def test_a_result_that_never_happened_is_not_shown() -> None:
    ops = Ops()
    ops["GET"].answered(0.001)
    assert not any('result="away"' in line for line in exposed(ops))


def test_a_duration_on_a_bound_counts_as_within_it_and_the_last_bucket_holds_all() -> None:
    ops = Ops()
    for seconds in (0.0, BOUNDS_S[0], 0.2, 99.0):
        ops["GET"].answered(seconds)
    lines = exposed(ops)
    assert 'dragoman_redis_op_seconds_bucket{le="0.0001",op="GET"} 2.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="0.1",op="GET"} 2.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="0.5",op="GET"} 3.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="+Inf",op="GET"} 4.0' in lines
    assert 'dragoman_redis_op_seconds_count{op="GET"} 4.0' in lines


def test_an_operation_keeps_one_tally() -> None:
    ops = Ops()
    assert ops["GET"] is ops["GET"]
    assert ops["GET"] is not ops["SET"]
