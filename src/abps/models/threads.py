"""A thread per core, the caller among them, that share work piece by piece.

Each runs single-threaded kernels: on products this small, threads of one product would wait for each other,
and the numbers would depend on how many cores there are.
"""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import scipy.linalg  # noqa: F401  (its BLAS must be loaded before it can be limited to one thread)
from threadpoolctl import ThreadpoolController

from abps.machine import available_cores

#: The BLAS behind compiled products; threads that run side by side give it one thread each.
BLAS = ThreadpoolController().select(user_api="blas")


class Crew:
    """Its threads live as long as it does, so that their buffers are used again."""

    def __init__(self) -> None:
        self.cores = len(available_cores())
        self._local = threading.local()
        self._helpers = ThreadPoolExecutor(max(1, self.cores - 1), thread_name_prefix="abps-learner")

    def begin(self, work: Callable[[int], None], count: int) -> Callable[[], None]:
        """Start ``work`` for 0..count-1 while the caller does something else; the result lends it a hand and
        waits until all is done."""
        if getattr(self._local, "busy", False):  # asked for inside of such work

            def alone() -> None:
                for k in range(count):
                    work(k)

            return alone
        pieces = itertools.count()

        def pull() -> None:
            self._local.busy = True
            try:
                while (k := next(pieces)) < count:
                    work(k)
            finally:
                self._local.busy = False

        one_each = BLAS.limit(limits=1)
        helping = [self._helpers.submit(pull) for _ in range(min(self.cores, count) - 1)]

        def finish() -> None:
            try:
                pull()
            finally:
                wait(helping)
                one_each.restore_original_limits()
            for each in helping:
                each.result()  # its error, if it had one

        return finish

    def each(self, work: Callable[[int], None], count: int) -> None:
        self.begin(work, count)()
