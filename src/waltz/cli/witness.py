"""`waltz witness`: a process that cosigns the checkpoints of logs, and never two that part.

Owns the HTTP of C2SP tlog-witness; the decisions are in `attest/witness_judge.py`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waltz.cli.http_options import http_options
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, set_up_logging
from waltz.cli.nodes import ADDRESS, run_loop, until_told
from waltz.cli.prove import read_key_text, read_public_key
from waltz.errors import AttestationError, ConfigurationError
from waltz.peer_log import PeerLog
from waltz.types import PLAIN_HTTP, Address, HttpAccess, is_local

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from waltz.attest.notes import PublicKey, SecretKey
    from waltz.cli.witness_heads import WitnessHeads
    from waltz.system.http import HttpServer

log = logging.getLogger(__name__)

DEFAULT_ADDRESS: Final = Address("127.0.0.1", 7190)


@click.command()
@click.option(
    "--http",
    "address",
    type=ADDRESS,
    default=str(DEFAULT_ADDRESS),
    show_default=True,
    help="Address to serve at.",
)
@click.option(
    "--key",
    "key_path",
    required=True,
    type=click.Path(path_type=Path),
    help="File with the witness's secret key: waltz attest keygen --witness.",
)
@click.option(
    "--log",
    "log_keys",
    required=True,
    multiple=True,
    metavar="KEY|FILE",
    help="Public key of a log to watch; may be repeated.",
)
@click.option(
    "--memory",
    "memory_path",
    required=True,
    type=click.Path(path_type=Path),
    help="SQLite file with the newest checkpoint of each log; made if there is none.",
)
@http_options(tokens=False)
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
def witness(
    address: Address,
    key_path: Path,
    log_keys: tuple[str, ...],
    memory_path: Path,
    http_access: HttpAccess,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Cosign the checkpoints of logs that do not rewrite what was cosigned before.

    Speaks C2SP tlog-witness: POST /add-checkpoint. The memory is what makes it a witness: a copy of
    an old one lets it cosign a fork of what it has forgotten. It needs no cluster, and should run
    where the owner of the log has no access.
    """
    from waltz.attest.notes import KeyKind, SecretKey

    key = SecretKey.parse(read_key_text(key_path))
    if key.public_key.kind is not KeyKind.WITNESS:
        raise ConfigurationError(
            f"{key_path} is the key of a log; `waltz attest keygen --witness` makes a witness's"
        )
    keys = tuple(read_public_key(each) for each in log_keys)
    set_up_logging(log_format)
    if http_access.tls is None and not is_local(address.host):
        log.warning(
            "witness_without_tls address=%s: give --http-tls-cert, or put TLS in front of it",
            address,
        )
    node = WitnessNode(address, key, keys, memory_path, http_access)
    run_loop(until_told(node, end_with_stdin=end_with_stdin))


class WitnessNode:
    """A witness as a process that runs until it is told to stop."""

    def __init__(
        self,
        address: Address,
        key: SecretKey,
        keys: tuple[PublicKey, ...],
        memory_path: Path,
        http_access: HttpAccess = PLAIN_HTTP,
    ) -> None:
        self._http_access = http_access
        self._address = address
        self._key = key
        self._keys = keys
        self._memory_path = memory_path
        self._peer_log = PeerLog(log, asyncio.get_running_loop)
        self._heads: WitnessHeads | None = None
        self._http: HttpServer | None = None

    @property
    def address(self) -> Address:
        """The address that it listens on, with the real port."""
        assert self._http is not None
        return self._http.address

    async def start(self) -> None:
        """Begin to serve. Raises ConfigurationError: the memory or the port cannot be used."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        from waltz.cli.witness_heads import WitnessHeads
        from waltz.system.http import HttpServer

        self._heads = WitnessHeads(self._memory_path)
        routes = [Route("/add-checkpoint", self._add_checkpoint, methods=["POST"])]
        self._http = HttpServer(Starlette(routes=routes), access=self._http_access)
        await self._http.start(self._address)
        public = self._key.public_key
        log.info("witness_started address=%s key=%s", self._http.address, public)

    async def run(self) -> None:
        """Wait for ever: the process ends when it is told to."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()
        if self._heads is not None:
            self._heads.close()

    async def _add_checkpoint(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, Response

        from waltz.attest.witness_judge import REQUEST_BYTES_MAX, Refusal, parse_request

        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > REQUEST_BYTES_MAX:
                return PlainTextResponse(f"at most {REQUEST_BYTES_MAX} bytes\n", 413)
        try:
            asked = parse_request(bytes(content))
        except AttestationError as error:
            return PlainTextResponse(f"{error}\n", 400)
        assert self._heads is not None
        origin = asked.note.text.partition("\n")[0]
        try:
            decision = await asyncio.to_thread(self._heads.decide, asked, origin, self._keys)
        except sqlite3.Error as error:
            log.error("witness_memory_failed reason=%r: nothing is cosigned", error)
            return PlainTextResponse("the memory of this witness cannot be used\n", 503)
        if isinstance(decision, Refusal):
            self._peer_log.info(
                "checkpoint_refused status=%s reason=%r", decision.status, decision.text
            )
            # "The response MUST have a Content-Type of text/x.tlog.size."
            kind = "text/x.tlog.size" if decision.cosigned_size is not None else "text/plain"
            return Response(f"{decision.text}\n", decision.status, {"content-type": kind})
        checkpoint = decision.checkpoint
        self._peer_log.info(
            "checkpoint_cosigned log=%s size=%s", checkpoint.origin, checkpoint.size
        )
        return PlainTextResponse(self._key.sign(asked.note.text, int(time.time())).line())
