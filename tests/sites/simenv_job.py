"""One job in the engine's simulator, in a process of its own: AGREEMENT WORKSPACE SITES…"""

import json
import sys
from pathlib import Path

agreement_file, workspace, *names = sys.argv[1:]
sys.argv = sys.argv[:1]

from nvflare.recipe import SimEnv  # noqa: E402

from abps.sites.consent.agreement import Agreement  # noqa: E402
from abps.sites.flare.recipe import ABPSRecipe, JobTimeouts  # noqa: E402

if __name__ == "__main__":
    agreement = Agreement.from_json(json.loads(Path(agreement_file).read_text()))
    recipe = ABPSRecipe(agreement, timeouts=JobTimeouts(call=60.0, sign=60.0))
    print(recipe.execute(SimEnv(clients=names, workspace_root=workspace)).get_result())
