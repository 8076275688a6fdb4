"""Names of parameters as the command line spells them: the one place that knows both."""

from __future__ import annotations

import re
from typing import Final

#: Parameters that the messages of the package speak of.
_PARAMETERS = (
    "between by center centers charlson columns data deviations device diagnoses dirichlet drop engine "
    "era eras every executor forget group host hours iid jobs keep label map max_age method methods "
    "min_age min_positives min_stays model only operator out patient port positive rounds seed seeds "
    "small time vary window outcome duration"
)

_NAMED: Final = re.compile(rf"(?<![\w:,.=-])({_PARAMETERS.replace(' ', '|')}|slurm_\w+)=")


def as_flags(message: str) -> str:
    """A message with the parameters that it names as ``name=value`` written as flags.

    >>> as_flags("min_stays=0: choose at least 1, or another center=COL")
    '--min-stays 0: choose at least 1, or another --center COL'
    >>> as_flags("icu-synthetic:centers=0 and gamma=2 stay as they are")
    'icu-synthetic:centers=0 and gamma=2 stay as they are'
    """
    return _NAMED.sub(lambda found: f"--{found[1].replace('_', '-')} ", message)
