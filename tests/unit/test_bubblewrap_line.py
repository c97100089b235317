"""The hardened command line: each option that closes a hole is there, in an order that keeps it closed."""

from __future__ import annotations

from computepool.node.sandbox.bubblewrap_line import Descriptors, plan_shm_bytes, write_command, write_options
from computepool.node.sandbox.port import Limits

LIMITS = Limits(1 << 30, 64, 2.5, 1 << 26, 60.0, 1000)


def options(job_dir: str | None = "/run/computepool/x", **env: str) -> list[str]:
    return write_options(
        env=env,
        limits=LIMITS,
        job_dir=job_dir,
        descriptors=Descriptors(7, 8, {"/etc/passwd": 9}),
        find_link={"/bin": "usr/bin", "/lib64": "usr/lib64"}.get,
    )


def pairs(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_every_wall_is_asked_for() -> None:
    words = options()
    for wall in ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"):
        assert wall in words
    assert pairs(words, "--cap-drop") == ["ALL"]
    assert pairs(words, "--seccomp") == ["7"]
    assert pairs(words, "--uid") == ["65534"]


def test_environment_is_cleared_before_it_is_set() -> None:
    words = options(SEED="1")

    assert words.index("--clearenv") < words.index("--setenv")
    assert "SEED" in pairs(words, "--setenv")
    assert words[words.index("COMPUTEPOOL_OUTPUT_DIR") + 1] == "/job/out"
    assert words[words.index("OMP_NUM_THREADS") + 1] == "2"


def test_job_may_not_move_its_output_folder() -> None:
    words = options(COMPUTEPOOL_OUTPUT_DIR="/elsewhere")

    assert "/elsewhere" not in words


def test_only_usr_and_two_files_of_etc_come_from_the_host() -> None:
    words = options()

    assert pairs(words, "--ro-bind") == ["/usr"]
    assert "/etc" not in pairs(words, "--ro-bind") + pairs(words, "--bind") + pairs(words, "--ro-bind-try")
    assert pairs(words, "--bind") == ["/run/computepool/x"]


def test_every_tmpfs_has_a_size_and_the_root_is_closed_last() -> None:
    for job_dir in ("/run/computepool/x", None):
        words = options(job_dir)
        assert words.count("--size") == words.count("--tmpfs") == (2 if job_dir else 3)
        assert pairs(words, "--remount-ro") == ["/dev", "/"]
        assert words.index("--remount-ro", words.index("--remount-ro") + 1) > words.index("/job")


def test_links_into_usr_stay_links() -> None:
    words = options()
    at = words.index("--symlink")

    assert words[at : at + 3] == ["--symlink", "usr/bin", "/bin"]
    assert "/sbin" in pairs(words, "--ro-bind-try")


def test_options_stay_off_the_command_line() -> None:
    line = write_command(["python3", "job.py"], args_fd=5, waits=False)

    assert line[:4] == ["bwrap", "--args", "5", "--"]
    assert line[-2:] == ["python3", "job.py"]
    assert "ready" not in " ".join(line)
    assert "ready" in " ".join(write_command(["true"], args_fd=5, waits=True))


def test_shared_memory_grows_with_the_memory() -> None:
    assert plan_shm_bytes(LIMITS) == 1 << 28
    assert plan_shm_bytes(LIMITS._replace(memory_bytes=1 << 20)) == 16 << 20
