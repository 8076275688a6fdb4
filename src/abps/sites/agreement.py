"""What the sites of a real federation agree on before a job: the method, the seed and the codebook.

It travels with the job as plain data; every site turns it into the same configuration object that the
simulation uses, and refuses a job whose agreement is not the one its store was made under.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.methods.abps import ABPS
from abps.methods.fedavg import FedAvg
from abps.methods.plus import ABPSPlus
from abps.methods.settings import configure, describe


@dataclass(frozen=True)
class Agreement:
    """study: the name of the common work; a site keeps one store per study.

    method, settings: as on the command line (``abps-pq-k1``, ``{"gamma": 0.5}``).
    rounds: the horizon of the study; one job may run fewer.
    """

    study: str
    method: str
    book: Codebook
    seed: int = 11
    rounds: int = 50
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> ABPS | ABPSPlus | FedAvg:
        """The method's configuration, the same object that the simulation runs."""
        config = configure(self.method, self.settings, self.rounds)
        # FedAvg's relatives train otherwise.
        if not isinstance(config, ABPS | ABPSPlus) and type(config) is not FedAvg:
            raise RequestError(
                f"the method {self.method!r} does not run between sites; "
                "choose one of the abps family or fedavg"
            )
        if isinstance(config, ABPSPlus) and not config.public.metadata:
            raise RequestError(
                "metadata=no: sites weigh a peer's model by its number of rows, which its metadata tell; "
                "publish them"
            )
        if isinstance(config, ABPSPlus) and config.public.noise:
            raise RequestError(
                f"noise={config.public.noise:g} is drawn from the study's seed, which every member knows, "
                "and would hide nothing from them; it runs in the simulation only"
            )
        if isinstance(config, ABPS):
            if config.filter.goal_function is not None:
                raise RequestError(
                    "a goal function of one's own is code, and jobs carry none; name a built-in goal"
                )
            if config.filter.candidates == "group":
                raise RequestError(
                    f"{self.method!r} takes partners from a declared group, which sites do not publish; "
                    "it runs in the simulation only"
                )
            old_rows = sorted(set(config.memory.watch) - {"utility"})
            if config.memory.forget == "alarm" and old_rows:
                raise RequestError(
                    f"watch={'+'.join(old_rows)} compares new rows with those that they took the place of, "
                    "and a site has one table in a job; between sites set watch=utility, which compares what "
                    "partners bring with what they brought before"
                )
        assert isinstance(config, ABPS | ABPSPlus | FedAvg)
        return config

    def digest(self) -> str:
        """Equal for two sites exactly if they would run the same thing."""
        content = json.dumps(
            [self.study, describe(self.config()), self.seed, self.book.to_json()], sort_keys=True
        )
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def notes(self) -> dict[str, str]:
        """What a site's store says about the study."""
        config = self.config()
        # abps-plus keeps its beliefs whole, not as evidence beside a prior.
        prior = config.selection.prior if isinstance(config, ABPS) else (0.0, 0.0)
        return {
            "study": self.study,
            "method": self.method,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "seed": str(self.seed),
            "rounds": str(self.rounds),
            "prior": json.dumps(list(prior)),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data for a job's configuration."""
        return {
            "schema": "abps.agreement/1",
            "study": self.study,
            "method": self.method,
            "settings": dict(self.settings),
            "seed": self.seed,
            "rounds": self.rounds,
            "codebook": self.book.to_json(),
        }

    @staticmethod
    def from_json(data: Any) -> Agreement:
        """An agreement from a job's configuration."""
        try:
            if data["schema"] != "abps.agreement/1":
                raise ValueError(f"schema {data['schema']!r}")
            return Agreement(
                str(data["study"]),
                str(data["method"]),
                Codebook.from_json(data["codebook"]),
                int(data["seed"]),
                int(data["rounds"]),
                dict(data["settings"]),
            )
        except RequestError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"the job's agreement cannot be read ({error!r}); submit it with abps"
            ) from error
