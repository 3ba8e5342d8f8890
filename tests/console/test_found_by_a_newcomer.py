"""A newcomer looks at the pages of `waltz up` in trouble: a storage node was killed, a consumer is
slow, and one lock refuses most appends. Each is found by following links from the first page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import waltz
from tests.clusters import RunningCluster, running_cluster, wait_until
from tests.console.test_chromium import SIZES, browser, watched
from waltz.types import PartitionId, TransactionId

__all__ = ["browser"]

pytestmark = [pytest.mark.processes, pytest.mark.long]


class Slow(waltz.WaltzClientCallbacks):
    """Applies nothing after the first transaction until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return TransactionId(-1)

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        if transaction.transaction_id > 0:
            self.let_go.wait()


class OnAccount(waltz.TransactionContext):
    """Writes under one lock, or under one of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = threading.Event()

    def partition_id(self, partition_count: int) -> int:
        return 1

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        builder.set_transaction_data(b"booked", waltz.BytesSerializer())
        builder.set_write_locks([waltz.PartitionLocalLock("account", self.number)])
        return True

    def on_completion(self, result: bool) -> None:
        self.is_over.set()


@contextmanager
def in_trouble(cluster: RunningCluster) -> Iterator[None]:
    """A cluster with a slow consumer and a hot lock."""
    slow = Slow()
    with ExitStack() as stack:
        coordinator = cluster.coordinator
        stack.enter_context(waltz.open_client(coordinator, slow, name="billing", is_consumer=True))
        stack.callback(slow.let_go.set)
        writer = stack.enter_context(
            waltz.open_client(coordinator, waltz.NoCallbacks(), name="orders")
        )
        for _ in range(20):
            contexts = [OnAccount(7) for _ in range(10)] + [OnAccount(8), OnAccount(8)]
            writer.submit_many(contexts)
            for each in contexts:
                assert each.is_over.wait(60)
        yield


def follow(page: Page, text: str) -> None:
    page.get_by_role("link", name=text).first.click()


def test_a_newcomer_finds_the_killed_node_the_slow_consumer_and_the_hottest_lock(
    browser: Browser, tmp_path: Path
) -> None:
    """`waltz up` starts the node again at once. No step waits for more than 20 s, so that all of
    them take less than two minutes."""
    with (
        running_cluster(tmp_path / "cluster", "--partitions", "2", "--console") as cluster,
        in_trouble(cluster),
    ):
        entry = next(each for each in cluster.state["processes"] if each["role"] == "console")
        with watched(browser, f"http://{entry['address']}", SIZES[0]) as shown:
            page = shown.open("/")
            shown.wait_until_live()
            cluster.kill("storage-2")
            page.get_by_text("Storage node storage-2", exact=False).first.wait_for()

            follow(page, "Consumers")
            shown.wait_until_live()
            first = page.locator("tbody tr").first
            wait_until(
                lambda: "is behind" in (first.text_content() or ""), "nobody is said to be behind"
            )
            assert "billing" in (first.text_content() or "")

            follow(page, "Locks")
            locks = page.locator("[data-region='hottest'] tbody tr")
            locks.first.wait_for()
            page.fill("input[name=locks]", "account")
            page.keyboard.press("Enter")
            page.wait_for_url("**/locks?locks=account")
            assert "account:7" in (locks.first.text_content() or "")
            page.get_by_text("The hottest lock is account:7 of partition 1:").wait_for()
            page.get_by_text("2 of 2 partitions asked", exact=False).wait_for()
            locks.first.locator("a").first.click()
            page.wait_for_url("**/partition/1#locks")
            page.go_back()
            page.wait_for_url("**/locks?locks=account")
            locks.first.locator("a").last.click()
            page.get_by_text("Committed;").wait_for()
            assert "booked" not in page.content()
            assert "orders" in (page.text_content(".facts") or "")
