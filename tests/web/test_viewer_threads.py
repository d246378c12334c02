"""Check that no role can take the threads by which the page serves the others."""

import asyncio
import threading
from typing import Any

from indb_tensile.web.viewer_threads import ViewerThreads


class AnyViewer:
    """Stands for a viewer, which is only told from others."""


def test_a_role_whose_requests_all_wait_holds_up_no_other_role() -> None:
    alice: Any = AnyViewer()
    bob: Any = AnyViewer()
    may_end = threading.Event()

    async def serve() -> tuple[str, list[bool]]:
        threads = ViewerThreads()
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(threads.run(alice, may_end.wait)) for _ in range(100)]
            await asyncio.sleep(0)
            try:
                answer = await asyncio.wait_for(threads.run(bob, lambda: "answer"), 10)
            finally:
                may_end.set()
        return answer, [task.result() for task in waiting]

    assert asyncio.run(serve()) == ("answer", [True] * 100)
