"""The BLAS behind compiled products; threads that run side by side give it one thread each."""

from __future__ import annotations

import scipy.linalg  # noqa: F401  (its BLAS must be loaded before it can be limited to one thread)
from threadpoolctl import ThreadpoolController

BLAS = ThreadpoolController().select(user_api="blas")
