from __future__ import annotations

import asyncio

import pytest

from waltz.connections.tasks_shell import Tasks


def test_stopping_ends_all_tasks_and_is_idempotent() -> None:
    async def main() -> None:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        started = [tasks.start(asyncio.Event().wait()) for _ in range(3)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await tasks.stop()
        await tasks.stop()
        assert all(task.cancelled() for task in started)
        assert failures == []

    asyncio.run(main())


def test_the_first_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        failures: list[BaseException] = []

        async def fail(number: int) -> None:
            raise ValueError(number)

        tasks = Tasks(failures.append)
        tasks.start(fail(1))
        tasks.start(fail(2))
        await asyncio.sleep(0.01)
        assert [str(failure) for failure in failures] == ["1"]
        await tasks.stop()

    asyncio.run(main())
    assert "task_failed" in caplog.text
