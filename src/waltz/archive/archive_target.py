"""The place where an archive is kept: a directory, or a bucket of an object store.

Owns the five verbs that an archive needs, over obstore, and what its errors mean. An object appears
whole or not at all, and is never changed. Credentials and the endpoint of a bucket come from the
environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and their like), or from the machine's role.

obstore syncs nothing that it puts into a directory, and a killed put of it leaves a file that its
listings hide, which would be there for good. So a directory is written by `DurableDirectory`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from waltz.archive.durable_directory import DurableDirectory
from waltz.errors import (
    ArchiveDamagedError,
    ArchiveUnreachableError,
    ConfigurationError,
    NotFoundError,
)
from waltz.system.real_disk import RealDisk

if TYPE_CHECKING:
    from obstore.store import LocalStore, ObjectStore, RetryConfig

ATTEMPTS_MAX: Final = 8
"""Requests to a bucket before one that is refused as too frequent, or fails there, is given up."""

ATTEMPTS_SECONDS_MAX: Final = 60.0
"""Time for these requests."""

REQUEST_SECONDS_MAX: Final = 60.0
"""Time for one request, with its transfer: 64 MiB at 10 Mbit/s take 54 s."""

WRITERS_MAX: Final = 16
"""Objects that are written at a time."""

PROBE: Final = "waltz-probe-"
"""The beginning of the name of the object that shows whether a bucket refuses a put of what is
there. It is removed at once; a killed process, or one that may not delete, leaves one."""

PROBE_BYTES_MAX: Final = 100

LIST_SIZE: Final = 1_000
"""Names asked for at a time."""

_DENIED: Final = "AccessDenied"

_UNUSABLE: Final = re.compile(r"[?#]")


class Listed(NamedTuple):
    """An object as a listing tells it: name, bytes, last change in milliseconds since 1970."""

    path: str
    byte_count: int
    changed_at: int


class Target(Protocol):
    """A directory or a bucket. All verbs raise ArchiveUnreachableError, ConfigurationError."""

    @property
    def url(self) -> str: ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Make an object, durable when this returns. False: there is one, which stays."""
        ...

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        """Make objects, all of them durable when this returns. Return the paths of those that were
        there; these stay, and are durable as well."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Make or replace an object, durable when this returns."""
        ...

    def get(self, path: str, bytes_max: int) -> bytes:
        """Raises NotFoundError; ArchiveDamagedError: it is larger than `bytes_max`."""
        ...

    def get_range(self, path: str, start: int, count: int) -> bytes:
        """Return these bytes, fewer if the object ends before. Raises NotFoundError."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        """Yield the objects in the directory `prefix` and below, whose names come after `after`."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object, if there is one."""
        ...


class _Store:
    """The verbs that both kinds of target have in common."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        self.url = url
        self._store = store

    def get(self, path: str, bytes_max: int) -> bytes:
        import obstore

        with _told(self.url, f"read {path}"):
            found = obstore.get(self._store, path)
            size = found.meta["size"]
            if size > bytes_max:
                raise ArchiveDamagedError(
                    f"{self.url}/{path} has {size} bytes; expected at most {bytes_max}", path
                )
            return bytes(found.bytes())

    def get_range(self, path: str, start: int, count: int) -> bytes:
        import obstore

        with _told(self.url, f"read {count} bytes of {path} from byte {start} on"):
            try:
                return bytes(obstore.get_range(self._store, path, start=start, length=count))
            except obstore.exceptions.GenericError:
                if obstore.head(self._store, path)["size"] <= start:
                    return b""  # the library calls that an invalid range
                raise

    def exists(self, path: str) -> bool:
        import obstore

        try:
            with _told(self.url, f"look for {path}"):
                obstore.head(self._store, path)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        import obstore

        with _told(self.url, f"list {prefix}"):
            for some in obstore.list(self._store, prefix, offset=after, chunk_size=LIST_SIZE):
                for each in some:
                    changed_at = int(each["last_modified"].timestamp() * 1000)
                    yield Listed(each["path"], each["size"], changed_at)

    def delete(self, path: str) -> None:
        import obstore

        try:
            with _told(self.url, f"delete {path}"):
                obstore.delete(self._store, path)
        except NotFoundError:
            return


class BucketTarget(_Store):
    """A bucket of S3 or of a store that speaks its protocol. A put is durable when it returns.

    A store that ignores `If-None-Match` would let two writers replace each other's objects. So
    before the first conditional put one object is made twice, and the bucket must refuse the second
    time.
    """

    def __init__(self, url: str, store: ObjectStore) -> None:
        super().__init__(url, store)
        self._is_proven = False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._expect_conditional_puts()
        return self._put_if_absent(path, data)

    def _expect_conditional_puts(self) -> None:
        """Raises ConfigurationError: the bucket replaces what it should refuse."""
        if self._is_proven:
            return
        path = f"{PROBE}{uuid4().hex}"
        self._put_if_absent(path, b"1")  # False: a repeated request found its own object
        is_replaced = self._put_if_absent(path, b"2")
        is_replaced |= self.get(path, PROBE_BYTES_MAX) != b"1"
        left = "and removed"
        try:
            self.delete(path)
        except (ArchiveUnreachableError, ConfigurationError):
            left = f"{path}, and could not be removed"  # it may not be allowed, and is not needed
        if is_replaced:
            raise ConfigurationError(
                f"{self.url} is in a store that ignores If-None-Match: it took a put of an object"
                " that was there already, so two writers would replace each other's objects."
                f" Only the object that showed this was written, {left}. Keep the archive or"
                " the tables in a store that knows conditional puts, such as Amazon S3"
            )
        self._is_proven = True

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        import obstore

        try:
            with _told(self.url, f"write {path}"):
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        self._expect_conditional_puts()
        with ThreadPoolExecutor(WRITERS_MAX) as pool:
            made = pool.map(lambda each: self._put_if_absent(*each), objects)
            return [path for (path, _), is_new in zip(objects, made, strict=True) if not is_new]

    def put(self, path: str, data: bytes) -> None:
        import obstore

        with _told(self.url, f"write {path}"):
            obstore.put(self._store, path, data, use_multipart=False)


class DirectoryTarget(_Store):
    """A directory of this machine, or of one that several machines see."""

    def __init__(self, url: str, store: LocalStore, directory: str) -> None:
        super().__init__(url, store)
        self._writer = DurableDirectory(RealDisk(), directory, writers=WRITERS_MAX)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with _told(self.url, f"write {path}"):
            return not self._writer.put_all_if_absent([(path, data)])

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        with _told(self.url, f"write {len(objects)} objects"):
            return self._writer.put_all_if_absent(objects)

    def put(self, path: str, data: bytes) -> None:
        with _told(self.url, f"write {path}"):
            self._writer.put(path, data)


def open_target(url: str, *, create: bool = False, attempts_max: int = ATTEMPTS_MAX) -> Target:
    """Return the place that a URL names: `file:///directory` or `s3://bucket/prefix`.

    With `create` the directory is made if there is none. `attempts_max` bounds the requests to a
    bucket before one that fails there is given up. Raises ConfigurationError: another URL, or
    a library is missing.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"file", "s3"} or _UNUSABLE.search(url) or "@" in parts.netloc:
        raise ConfigurationError(
            f"not the place of an archive: {_without_secret(url)!r}; expected file:///directory or"
            " s3://bucket/prefix, and credentials in the environment"
        )
    try:
        from obstore.store import LocalStore, S3Store
    except ImportError as error:
        raise ConfigurationError(
            f"an archive needs obstore and zstandard: pip install 'waltz-log[archive]' ({error})"
        ) from None
    path = unquote(parts.path)
    shown = url.rstrip("/")
    with _told(shown, "open it"):
        if parts.scheme == "s3":
            if not parts.netloc:
                raise ConfigurationError(f"no bucket in {url!r}; expected s3://bucket/prefix")
            store = S3Store(
                parts.netloc,
                prefix=path.strip("/") or None,
                client_options={
                    "timeout": timedelta(seconds=REQUEST_SECONDS_MAX),
                    "allow_http": True,  # only if the endpoint in the environment says http://
                },
                retry_config=_retries(attempts_max),
            )
            return BucketTarget(shown, store)
        if parts.netloc not in {"", "localhost"} or not path.strip("/"):
            raise ConfigurationError(f"no directory in {url!r}; expected file:///directory")
        directory = str(PurePosixPath(path))
        if create:
            _make_root(directory)
        elif not RealDisk().exists(directory):
            raise ConfigurationError(f"there is no directory {directory}: is it mounted?")
        return DirectoryTarget(shown, LocalStore(directory), directory)


def _make_root(directory: str) -> None:
    try:
        RealDisk().make_directory(directory)
    except FileExistsError:
        pass  # it was there, or another process makes it just now
    except FileNotFoundError:
        parent = PurePosixPath(directory).parent
        raise ConfigurationError(f"there is no directory {parent}: is it mounted?") from None
    # A process that was killed may have made the directory without syncing its name. Where the
    # parent may not be read, somebody else made the directory, and long ago.
    with suppress(PermissionError):
        RealDisk().sync_directory(str(PurePosixPath(directory).parent))


def _retries(attempts_max: int) -> RetryConfig:
    return {
        "max_retries": attempts_max - 1,
        "retry_timeout": timedelta(seconds=ATTEMPTS_SECONDS_MAX),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }


def _without_secret(url: str) -> str:
    """Return the URL without what somebody may have written before an @ sign or after a ?."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + re.sub(r"\?.*", "?...", rest.rpartition("@")[2])


@contextmanager
def _told(url: str, what: str) -> Iterator[None]:
    """Raise errors of the library as ours, with what was asked and what to look at."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise NotFoundError(f"there is no such object in {url}: asked to {what}") from None
    except exceptions.AlreadyExistsError:
        raise FileExistsError(what) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise _refused(url, what, error) from None
    except exceptions.BaseError as error:
        if _DENIED in str(error):  # of the answer to a deletion of several objects, which is 200
            raise _refused(url, what, error) from None
        raise ArchiveUnreachableError(
            f"{url} failed to {what}: {_first_line(error)}; look at the endpoint, the bucket and"
            " the network"
        ) from None
    except OSError as error:
        raise ArchiveUnreachableError(
            f"{url} failed to {what}: {error.strerror or error}; look at the directory's mount, its"
            " space and its permissions"
        ) from None


def _refused(url: str, what: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"{url} refuses to {what}: {_first_line(error)}; look at the credentials in the"
        " environment and at what they may do: put, get, list and delete"
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:500]
