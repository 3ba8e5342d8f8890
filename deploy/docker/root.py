"""Collects the root of the image: `root.py ENVIRONMENT IMAGE`, by the Python of the environment.

The image has what is named here and what that needs, and nothing else: the environment, the
standard library of its Python, the shared libraries that their programs are linked with, and what
the C library reads. Which packages of Debian files come from is written where scanners of images
look for it.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

USER: Final = 10001
"""User and group of all processes of the image."""

LEFT_OUT_OF_PYTHON: Final = (
    "__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "dist-packages", "test", "tests", "tkinter", "turtledemo", "turtle.py", "_test*", "xxlimited*",
    "_tkinter*", "nis.*", "_dbm.*", "_gdbm.*",
)  # fmt: skip
"""Parts of the standard library that no process of Waltz imports: what installs, what tests, what
draws, and modules that bring libraries of Kerberos and Berkeley DB along."""

LEFT_OUT_OF_PACKAGES: Final = (
    "__pycache__", "tests", "include", "*.a", "*.h", "*.c", "*.pxd", "*.pyx",
)  # fmt: skip
"""Parts of installed packages for those who compile or test them."""

LEFT_OUT_OF_PROGRAMS: Final = ("activate*", "Activate*", "__pycache__")
"""Scripts that a shell would read."""

READ_BY_THE_C_LIBRARY: Final = (
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
)
LOADED_BY_NAME: Final = "libgcc_s.so.1"
"""A library that no program is linked with: the C library loads it when a thread is ended."""

LINKED: Final = re.compile(r"(?:=> )?(/\S+) \(0x")
"""A line of `ldd`, with the place of a library."""


def main(environment: Path, image: Path) -> None:
    for folder in ("tmp", "proc", "dev", "sys", "etc", "var/lib/waltz/storage"):
        (image / folder).mkdir(parents=True)
    (image / "tmp").chmod(0o1777)
    for data in (image / "var/lib/waltz", image / "var/lib/waltz/storage"):
        data.chmod(0o700)
        shutil.chown(data, USER, USER)
    users = (("root", 0, "/"), ("waltz", USER, "/var/lib/waltz"))
    passwd = [f"{name}:x:{user}:{user}:{name}:{home}:/sbin/nologin\n" for name, user, home in users]
    (image / "etc/passwd").write_text("".join(passwd))
    (image / "etc/group").write_text("".join(f"{name}:x:{user}:\n" for name, user, _ in users))

    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    copy(library, image, LEFT_OUT_OF_PYTHON)
    packages = Path(sysconfig.get_path("purelib"))
    copy(packages, image, LEFT_OUT_OF_PACKAGES)
    copy(environment / "bin", image, LEFT_OUT_OF_PROGRAMS)
    take(environment / "pyvenv.cfg", image)
    shutil.copyfile(Path(__file__).with_name("live.py"), inside(image, environment / "live.py"))

    taken = {place for each in (library, environment) for place in libraries(inside(image, each))}
    taken |= {place for place in map(Path, READ_BY_THE_C_LIBRARY) if place.exists()}
    own = (library, environment, image)
    taken = {place for place in taken if not any(map(place.is_relative_to, own))}
    for place in sorted(taken):
        take(place, image)
    note_packages([*sorted(taken), library / "os.py"], image)
    # What is compiled is never compared with times: a copy of an image may change them.
    for sources in (library, packages):
        compileall.compile_dir(
            inside(image, sources),
            quiet=2,
            stripdir=str(image),
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )


def inside(image: Path, place: Path) -> Path:
    """Return where a file of this machine lies in the image."""
    return image / place.relative_to("/")


def copy(folder: Path, image: Path, left_out: tuple[str, ...]) -> None:
    """Copy a folder with all below it but what is left out."""
    target = inside(image, folder)
    shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns(*left_out))


def take(place: Path, image: Path) -> None:
    """Copy a file, and the symbolic links on the way to it."""
    way = Path("/")
    for number, part in enumerate(place.parts[1:], 2):
        way /= part
        target = inside(image, way)
        if way.is_symlink():
            if not target.is_symlink():
                target.symlink_to(way.readlink())
            led = os.path.normpath(way.parent / way.readlink())
            take(Path(led, *place.parts[number:]), image)
            return
        if way.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            shutil.copy2(way, target)


def libraries(folder: Path) -> Iterator[Path]:
    """Yield the shared libraries that programs and libraries below a folder are linked with."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.open("rb").read(4) != b"\x7fELF":
            continue
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        missing = [line.strip() for line in linked.splitlines() if "not found" in line]
        if missing:
            sys.exit(f"root.py: {path}: {', '.join(missing)}")
        for found in LINKED.findall(linked):
            yield Path(found)
            beside = Path(found).with_name(LOADED_BY_NAME)
            if beside.exists():
                yield beside


def note_packages(places: list[Path], image: Path) -> None:
    """Write down which packages of Debian the files come from, and take their licences along."""
    spellings = {str(form) for place in places for form in (place, place.resolve())}
    spellings |= {each.removeprefix("/usr") for each in spellings if each.startswith("/usr/lib")}
    asked = subprocess.run(
        ["dpkg", "--search", *sorted(spellings)], capture_output=True, text=True, check=False
    )
    folder = image / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in sorted({line.split(":")[0] for line in asked.stdout.splitlines()}):
        command = ["dpkg-query", "--status", name]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        (folder / name).write_text(found.stdout)
        licence = Path("/usr/share/doc", name, "copyright")
        if licence.exists():
            inside(image, licence).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(licence, inside(image, licence))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
