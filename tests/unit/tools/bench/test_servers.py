from dragoman.tools.bench.servers import cpu_seconds

INFO = (
    "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n"
    "used_cpu_user_children:9.0\r\nused_cpu_sys_main_thread:1.400000\r\nused_cpu_user_main_thread:2.200000\r\n"
)


def test_the_cpu_time_of_a_server_is_its_own_and_counted_once() -> None:
    assert cpu_seconds(INFO) == 3.75
