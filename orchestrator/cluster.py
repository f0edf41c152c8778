"""A Ray cluster to run on: a private one on this machine's loopback, or one that is there already.

Authentication is always decided in the open: a cluster started here has a token of its own, in a file that only
its owner reads; one that is joined is asked first whether it wants a token, and one that listens on a network
without any is refused unless that is allowed. Nothing here, or anywhere in this project, calls ``ray stop``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deyo.types import ConfigError
from orchestrator.probe import ClusterError, ClusterFacts, only_here, probe, token_in_use, version_mismatch
from orchestrator.provenance import code_environment
from orchestrator.signals import own_sigterm

_PREFIX = "deyo-ray-"
_LONGEST_FOLDER = 20  # a socket's path has 107 characters at most, and Ray adds some 80
_OBJECT_STORE_BYTES = 300_000_000
IN_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray in the driver of a Ray Job, whose code is already that of the job."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A cluster that this process is connected to; ``local`` if it was started here and ends with it.

    ``grows``: it has an autoscaler.
    """

    address: str
    local: bool
    grows: bool = False


@contextlib.contextmanager
def local_cluster(*, cpus: float | None = None, gpus: int | None = None) -> Iterator[Connection]:
    """A cluster on this machine that listens on loopback alone and ends with the block.

    ``cpus`` and ``gpus`` are what it offers; None for what the machine has.
    """
    _remove_dead_directories()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_short_folder()))
    try:
        with _token(directory), _loopback(), own_sigterm(), code_snapshot() as environment:
            import ray

            context = ray.init(
                address="local",
                num_cpus=None if cpus is None else max(1, int(cpus)),
                num_gpus=gpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                runtime_env=environment,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(directory),
                **_QUIET,
            )
        try:
            yield Connection(address=context.address_info["gcs_address"], local=True)
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def existing_cluster(address: str, *, allow_insecure: bool = False) -> Iterator[Connection]:
    """A cluster that is there already, at ``HOST:PORT``.

    Raises ``ClusterError`` within seconds where it cannot be used: nothing answers, a token is missing or
    wrong, versions differ, or it takes commands from anyone on the network.
    """
    facts = check_cluster(address, allow_insecure=allow_insecure)
    os.environ["RAY_AUTH_MODE"] = token_in_use().mode
    import ray

    reread_authentication()

    try:
        here = _loopback() if only_here(address, facts) else contextlib.nullcontext()
        with here, own_sigterm(), code_snapshot() as environment:
            ray.init(address=address, runtime_env=environment, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"cannot join the cluster at {address}: {error}") from error
    try:
        yield Connection(address=address, local=False, grows=facts.grows)
    finally:
        ray.shutdown()


def address_of_job() -> str:
    """What ``--address auto`` means: the cluster whose Ray Job this process is. ``ConfigError`` if it is none."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    raise ConfigError("--address auto is for drivers of Ray Jobs, where RAY_ADDRESS is set; write HOST:6379")


def check_cluster(address: str, *, allow_insecure: bool = False) -> ClusterFacts:
    """What the cluster is; raises ``ClusterError`` where ``existing_cluster`` would."""
    facts = probe(address)
    if mismatch := version_mismatch(facts):
        raise ClusterError(mismatch)
    if allow_insecure or only_here(address, facts):
        return facts
    try:
        probe(address, authenticated=False)
    except ClusterError:
        return facts  # it wants a token: good
    raise ClusterError(
        f"the cluster at {address} runs commands for anyone who reaches it: it has no authentication. Start it "
        "with RAY_AUTH_MODE=token (`ray get-auth-token --generate` makes a token), or pass --allow-insecure"
    )


@contextlib.contextmanager
def code_snapshot() -> Iterator[dict[str, Any]]:
    """The runtime environment of workers: a copy of this code as it is now, whatever is edited later.

    It is Ray's working directory of the job, so that neither the folder in which the driver was started nor
    that of its script is on the workers' path. Workers that start late (new hosts, replaced processes) get the
    same copy. The block lasts until the copy is uploaded.
    """
    if IN_RAY_JOB in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-code-") as folder:
        copy_code(Path(folder))
        yield {"working_dir": folder, "env_vars": dict(code_environment())}


def copy_code(folder: Path) -> None:
    """Copy the two packages into ``folder``."""
    here = Path(__file__).resolve().parent
    for package in (here, here.parent / "deyo"):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))


_QUIET: Mapping[str, Any] = {"log_to_driver": True, "logging_level": "warning", "configure_logging": True}


@contextlib.contextmanager
def _token(directory: Path) -> Iterator[None]:
    """Token authentication for this process and its children, by a file of mode 0600.

    Ray reads the token once in a process's life, so it stays in the environment afterwards.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if not _private_token():
        path = directory.parent / f"{_PREFIX}token-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
        _remove_at_exit(path)
    reread_authentication()
    yield


def _private_token() -> bool:
    """Whether there is a token that only this user can read; a file that others could read is closed to them."""
    token = token_in_use()
    if token.present and token.path is not None and (token.file_mode or 0) & 0o077:
        with contextlib.suppress(PermissionError):
            token.path.chmod(0o600)
    return token.present and not (token.file_mode or 0) & 0o077


def reread_authentication() -> None:
    """Ray reads mode and token when it is first imported; here it is told to look again."""
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _remove_at_exit(path: Path) -> None:
    import atexit

    owner = os.getpid()
    atexit.register(lambda: path.unlink(missing_ok=True) if os.getpid() == owner else None)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Ray takes 127.0.0.1 for a host's address only where it believes that no other host can join.

    That belief is a constant which it sets on laptops' systems; here it is set for the time of ``ray.init``.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _short_folder() -> str:
    """The folder for temporary files; /tmp where its name is so long that Ray's sockets would have none."""
    named = tempfile.gettempdir()
    return named if len(named) <= _LONGEST_FOLDER else "/tmp"


def _remove_dead_directories() -> None:
    """What killed processes of the same user left."""
    for path in Path(_short_folder()).glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX).removeprefix("token-").split("-")[0]
        if not number.isdigit() or _alive(int(number)):
            continue
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
