import resource

from dragoman.instance.open_files import raise_file_limit


def test_more_open_files_than_the_system_allows_are_refused() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_file_limit(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]
        assert raise_file_limit(2**62) is (limits[1] == resource.RLIM_INFINITY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
