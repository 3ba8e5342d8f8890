"""Containers without a container engine: the steps of a Dockerfile carried out into a directory,
and processes started with that directory as their read-only root.

The stage that builds has this machine's programs, read-only, in place of its base image. A
container is `bwrap` of Debian's: the root read-only, volumes, a temporary /tmp, no variables but
its own, a user without any rights, and process number 1 as in a container. This needs root.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.clusters import ROOT
from tests.databases import installed
from tests.packages.packing import files_of_tree

DOCKERFILE: Final = ROOT / "deploy" / "docker" / "Dockerfile"
STEP_SECONDS_MAX: Final = 600
OWN_FOLDERS: Final = ("build", "image", "opt")
"""The folders at the top that the stage that builds writes."""

NOT_OF_BASE: Final = frozenset((*OWN_FOLDERS, "dev", "proc", "tmp"))


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its lines joined."""

    word: str
    text: str

    @property
    def argv(self) -> list[str]:
        """Return the command of RUN, CMD or ENTRYPOINT: a list as it is, else by a shell."""
        if self.text.startswith("["):
            command: list[str] = json.loads(self.text)
            return command
        return ["/bin/sh", "-c", self.text]


def instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        Instruction(*re.fullmatch(r"(\w+)\s+(.*)", line).groups())  # type: ignore[union-attr]
        for line in joined.splitlines()
        if line.strip()
    ]


def stages(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage; those before the first are left out."""
    found: list[list[Instruction]] = []
    for each in instructions(text):
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def variables(stage: Sequence[Instruction], word: str) -> dict[str, str]:
    """Return the names of ARG, ENV or LABEL and their values; those of ARG may be empty."""
    pairs = [
        match.groups()
        for each in stage
        if each.word == word
        for match in re.finditer(r'([\w.]+)(?:=(?:"([^"]*)"|(\S*)))?', each.text)
    ]
    return {name: quoted or bare or "" for name, quoted, bare in pairs}


def context(ignored: str) -> Iterator[str]:
    """Yield the files of the tree that a build sees, by the rules of a .dockerignore."""
    rules = [line for line in ignored.splitlines() if line and not line.startswith("#")]
    for path in files_of_tree():
        seen = True
        for rule in rules:
            pattern = rule.removeprefix("!")
            ways = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
            if any(fnmatch.fnmatchcase(way, pattern) for way in ways):
                seen = rule.startswith("!")
        if seen:
            yield path


@dataclass(frozen=True)
class Image:
    """A root in a directory, and what the last stage of the Dockerfile says of its containers."""

    root: Path
    environment: Mapping[str, str]
    entrypoint: Sequence[str]
    user: int
    directory: str
    health: Sequence[str]

    @property
    def size(self) -> int:
        """The bytes of all files, each rounded up to blocks as a disk does."""
        return sum(path.lstat().st_blocks * 512 for path in self.root.rglob("*"))


def bwrap() -> str:
    def found() -> Path | None:
        place = shutil.which("bwrap")
        return None if place is None else Path(place)

    return str(found() or installed("bubblewrap", found))


def build(directory: Path) -> Image:
    """Carry out the Dockerfile in `directory`, which every user must be able to enter."""
    assert os.geteuid() == 0, "images are built by root: the files of an image have owners"
    text = DOCKERFILE.read_text()
    building, final = stages(text)
    for name in OWN_FOLDERS:
        (directory / name).mkdir()
    place = "/"
    arguments: dict[str, str] = {}
    for each in building:
        match each.word:
            case "ARG":
                arguments |= variables([each], "ARG")
            case "WORKDIR":
                place = each.text
            case "COPY":
                assert (each.text, place) == (". .", "/build")
                for path in context(DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()):
                    (directory / "build" / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / path, directory / "build" / path)
            case "RUN":
                _run(directory, each.argv, place, arguments)
            case word:
                assert word == "FROM", f"nobody has said what {word} does in this stage"
    return _assembled(directory, final)


def this_machine() -> list[str]:
    """Return the mounts of `bwrap` that show this machine's programs and files, read-only, but not
    the folders that a stage writes, and none of the processes."""
    mounts: list[str] = []
    for path in sorted(Path("/").iterdir()):
        if path.is_symlink():
            mounts += ["--symlink", str(path.readlink()), str(path)]
        elif path.name not in NOT_OF_BASE and path.is_dir():
            mounts += ["--ro-bind", str(path), str(path)]
    return [*mounts, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]


def _run(directory: Path, argv: Sequence[str], place: str, variables: Mapping[str, str]) -> None:
    mounts = this_machine()
    for name in OWN_FOLDERS:
        mounts += ["--bind", str(directory / name), f"/{name}"]
    program = os.pathsep.join((str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]))
    done = subprocess.run(
        [bwrap(), *mounts, "--chdir", place, "--", *argv],
        env=os.environ | dict(variables) | {"PATH": program},
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"RUN {argv}: {done.stdout}{done.stderr}"


def _assembled(directory: Path, final: Sequence[Instruction]) -> Image:
    """Carry out what the last stage copies, and read what it says."""
    root = directory / "root"
    root.mkdir()
    single = {each.word: each for each in final}
    for each in final:
        if each.word == "COPY":
            *options, source, target = each.text.split()
            assert "--from=build" in options
            shutil.copytree(
                directory / source.strip("/"),
                root / target.strip("/"),
                symlinks=True,
                dirs_exist_ok=True,
            )
            for owner in (each.removeprefix("--chown=") for each in options if "chown" in each):
                user, group = map(int, owner.split(":"))
                for path in [root / target.strip("/"), *(root / target.strip("/")).rglob("*")]:
                    os.chown(path, user, group)
    health = single["HEALTHCHECK"].text.partition("CMD ")[2]
    return Image(
        root,
        variables(final, "ENV"),
        single["ENTRYPOINT"].argv,
        int(single["USER"].text.partition(":")[0]),
        single["WORKDIR"].text,
        json.loads(health),
    )


@dataclass
class Container:
    """Processes with an image as their root; `volumes` are directories by their place in it, and
    `files` are read-only."""

    image: Image
    volumes: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inside: Sequence[str] = ()
    """The command that starts others in the network of the container; none: this machine's."""

    def command(self, *argv: str, info: int | None = None) -> list[str]:
        """Return the command of this machine that runs `argv` as the first process inside."""
        image = self.image
        mounts = ["--ro-bind", str(image.root), "/", "--proc", "/proc", "--dev", "/dev"]
        mounts += ["--tmpfs", "/tmp"]
        for target, place in self.volumes.items():
            mounts += ["--bind", str(place), _point(image.root, target, place)]
        for target, place in self.files.items():
            mounts += ["--ro-bind", str(place), _point(image.root, target, place)]
        settings = [
            part
            for name, value in (dict(image.environment) | dict(self.environment)).items()
            for part in ("--setenv", name, value)
        ]
        return [
            *self.inside,
            *("setpriv", "--reuid", str(image.user), "--regid", str(image.user)),
            *("--clear-groups", "--bounding-set=-all", "--no-new-privs", "--", bwrap()),
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1"),
            *("--die-with-parent", *mounts, "--clearenv", *settings, "--chdir", image.directory),
            *(("--info-fd", str(info)) if info is not None else ()),
            *("--", *argv),
        ]

    def start(self, *arguments: str, **options: Any) -> Process:
        """Start the entry point with arguments."""
        reading, writing = os.pipe()
        argv = self.command(*self.image.entrypoint, *arguments, info=writing)
        popen = subprocess.Popen(
            argv, pass_fds=(writing,), stdin=subprocess.DEVNULL, text=True, **options
        )
        os.close(writing)
        with os.fdopen(reading) as told:
            said = told.read()
        assert said, f"{argv} has not started"
        return Process(popen, int(json.loads(said)["child-pid"]))

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end."""
        return subprocess.run(
            self.command(*argv), capture_output=True, text=True, timeout=120, check=False
        )

    def run_waltz(self, *arguments: str) -> str:
        """Run a `waltz` command inside and return what it printed; it must end well."""
        done = self.run(*self.image.entrypoint, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


@dataclass
class Process:
    """The first process of a container; a signal reaches it, not what started it."""

    popen: subprocess.Popen[str]
    pid: int

    def end(self, signal_number: int) -> int:
        """Send a signal and return the exit code of what has ended. Raises TimeoutExpired."""
        os.kill(self.pid, signal_number)
        return self.popen.wait(60)


def _point(root: Path, target: str, place: Path) -> str:
    """Make what is mounted over, as an engine does in its own layer of a container."""
    point = root / target.lstrip("/")
    if not point.exists():
        point.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            point.mkdir()
        else:
            point.touch()
    return target


def directory_for_all() -> Path:
    """Return a new directory that every user can enter; the caller removes it."""
    directory = Path(tempfile.mkdtemp(prefix="waltz-", dir="/tmp"))
    directory.chmod(0o755)
    return directory


def volume(directory: Path, image: Image) -> Path:
    """Make a directory as an engine makes a new volume: its owner is the user of the image."""
    directory.mkdir()
    os.chown(directory, image.user, image.user)
    return directory


def keep(image: Image, file: Path) -> None:
    """Write down what is to be known of an image, for another process."""
    told = asdict(image) | {"root": str(image.root)}
    file.write_text(json.dumps(told))


def kept(file: Path) -> Image:
    told = json.loads(file.read_text())
    return Image(**told | {"root": Path(told["root"])})
