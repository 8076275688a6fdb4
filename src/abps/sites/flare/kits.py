"""From "four hospitals" to a network: certificates, startup kits, and the processes that run from them.

A kit is a folder for one participant: its certificate and key, the relay's address, and a ``local`` folder
that is the participant's own. What a site allows is written there: only the two classes of ours that a job
names, no code that comes with a job, no shell for the operator.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.kit import Role, participant_kit
from abps.sites.flare import intake
from abps.sites.flare.recipe import ALLOW

#: Seconds that a job stays open for a site that died; the engine's own default is fifteen minutes.
OUTCOME_WAIT = "5"

#: The engine groups participants by organisation; for us they are all one federation.
ORGANISATION = "federation"

#: Days that a new authority lives; certificates of members live shorter, and are rotated.
ROOT_DAYS = 3650

#: Where the authority keeps its key and the members' certificates.
STATE = Path("abps", "state", "cert.json")

#: The names of all sites, in the ``local`` folder of the operator's kit.
MEMBERS = "members.json"

#: Bytes of a log file, and how many are kept.
LOG_BYTES, LOG_FILES = 5 * 2**20, 5

#: Parts of the engine that write a line or two for every message.
_CHATTY = (
    "nvflare.collab",
    "nvflare.fuel.f3.cellnet",
    "nvflare.private.aux_runner",
)

_SITE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
_HOST_NAME = re.compile(r"^([A-Za-z0-9-]+\.)*[A-Za-z0-9-]+$")
_EMAIL = re.compile(r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$")
_RESERVED = {"server", "relay", "admin", "all", "authority", "rotated", "root_cert", "root_pri_key"}

#: Small models gain nothing from more threads, and every thread has memory of its own.
_LEAN = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "131072",  # what is free goes back at once, also after something large was
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "NVFLARE_STREAMING_CHUNK_SIZE": "131072",  # room that the engine takes for a message, else a megabyte
}

#: What anybody with an operator's certificate may do at a site: run and stop jobs that carry no code.
_RIGHTS = {
    "submit_job": "any",
    "clone_job": "any",
    "manage_job": "any",
    "download_job": "any",
    "view": "any",
    "operate": "any",
    "shell_commands": "none",
    "byoc": "none",
}


@dataclass(frozen=True)
class Network:
    """A provisioned network: the folder of the relay's kit, of every site's, and of the operator's."""

    relay: Path
    sites: dict[str, Path]
    operator: Path
    authority: Path


def provision(
    out: Path,
    sites: Sequence[str],
    host: str,
    port: int = 8002,
    operator: str = "operator@federation.example",
    own_keys: bool = False,
) -> Network:
    """Make certificates and startup kits; a second call with more sites adds kits and keeps the others.

    host: the name by which the sites reach the relay; ``localhost`` keeps everything on this machine.
    own_keys: sites make their keys themselves (:mod:`abps.sites.consent.keys`), and their kits bring none.

    A kit is made once. The authority keeps no key of a member, so a kit that is not here any more is left
    where it is.
    """
    _check(sites, host, port, operator)
    authority = files.folder(out / "authority")
    authority.chmod(0o700)  # the authority's key lies here
    known = _known(authority)
    kits = {name: out / name for name in (*sites, operator)} | {host: out / "relay"}
    fresh_kits = {name: kit for name, kit in kits.items() if name not in known}
    for kit in fresh_kits.values():
        if kit.exists():
            raise RequestError(f"{kit} is no kit of a member of this network; move it away, and try again")
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    from abps.sites.flare.certificates import MemberCertificates

    builders: list[dict[str, Any]] = [
        {
            "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
            "args": {"template_file": ["master_template.yml"]},
        },
        {
            "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
            "args": {"config_folder": "config", "scheme": "grpc"},
        },
        {
            "path": "abps.sites.flare.certificates.MemberCertificates",
            "args": {"root_valid_days": _root_days(authority), "own_keys": own_keys},
        },
        {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
    ]
    relay = {"name": host, "type": "server", "org": ORGANISATION, "fed_learn_port": port, "admin_port": port}
    project = {
        "api_version": 3,
        "name": "abps",
        "description": "made by abps site provision",
        "participants": [
            relay,
            *({"name": name, "type": "client", "org": ORGANISATION} for name in sites),
            {"name": operator, "type": "admin", "org": ORGANISATION, "role": "project_admin"},
        ],
        "builders": builders,
    }
    chatter = io.StringIO()
    with contextlib.redirect_stdout(chatter), contextlib.redirect_stderr(chatter):
        builds = prepare_builders(project)
        made = Provisioner(str(authority), builds).provision(prepare_project(project))
    if made.get("build_error") or "current_prod_dir" not in made:
        why = (chatter.getvalue().strip() or "no reason given").splitlines()[-1]
        raise RequestError(f"{out}: the kits could not be made ({why}); mend that and try again")
    fresh = Path(made["current_prod_dir"])
    try:
        for name, kit in fresh_kits.items():
            shutil.copytree(fresh / name, kit)
            _own_readme(kit, "operator" if name == operator else "relay" if name == host else "site")
            if name != operator:
                _own_rules(kit)
        for builder in builds:
            if isinstance(builder, MemberCertificates):
                # Last: who is written down here has its kit, which is never made again.
                files.write_secret(authority / STATE, files.as_json(builder.kept))
    except (OSError, RequestError) as error:  # half a kit would only be in the way
        for kit in fresh_kits.values():
            shutil.rmtree(kit, ignore_errors=True)
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"{out}: the kits could not be written; make room or choose another place"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    from abps.sites.flare.authority import Authority

    authority_ = Authority(out)
    authority_.readmit(sites)
    if (out / operator / "local").is_dir():
        files.write_json(out / operator / "local" / MEMBERS, sorted(authority_.sites()))
    return Network(out / "relay", {name: out / name for name in sites}, out / operator, authority)


def provisioned(operator: Path) -> tuple[str, ...]:
    """The sites that an operator's kit was provisioned with; none in kits of earlier versions."""
    path = Path(operator) / "local" / MEMBERS
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ()


def _known(authority: Path) -> dict[str, Any]:
    """What the authority has written down: its own certificate, and those of members by their names."""
    state = authority / STATE
    return dict(json.loads(state.read_text(encoding="utf-8"))) if state.is_file() else {}


def _root_days(authority: Path) -> int:
    """Days of the authority's own certificate: ten years; an authority that is there keeps what it has."""
    known = _known(authority)
    if not known:
        return ROOT_DAYS
    from cryptography import x509

    pem = str(known["root_cert"]).encode()
    root = x509.load_pem_x509_certificate(pem)
    return (root.not_valid_after_utc - root.not_valid_before_utc).days


def _check(sites: Sequence[str], host: str, port: int, operator: str) -> None:
    if len(sites) < 2:
        raise RequestError("a network needs at least 2 sites; name them all")
    twins = sorted({name for name in sites if list(sites).count(name) > 1})
    if twins:
        raise RequestError(f"the site {twins[0]!r} is named twice; site names must differ")
    for name in sites:
        if not _SITE_NAME.match(name) or name.lower() in _RESERVED:
            raise RequestError(
                f"the site name {name!r} cannot be used; letters, digits, - and _, and not 'server'"
            )
    if not _HOST_NAME.match(host) or host in sites:
        raise RequestError(f"host={host!r} is not a host name of its own; give the relay's DNS name")
    if not 1 <= port <= 65535:
        raise RequestError(f"port={port}: choose 1 to 65535")
    if not _EMAIL.match(operator):
        raise RequestError(f"operator={operator!r}: the engine knows operators by e-mail address; give one")


#: What to do with a kit, by who has it; said in its readme.
_README = {
    "site": """This folder belongs to one hospital. Whoever has its key is this hospital to all others: keep
it to yourself, and pass nothing of `startup` on.

    abps site init --kit THIS --table stays.parquet --label died     which table is your own; nothing leaves
    abps site check THIS                                             whether all is ready
    abps site start THIS                                             runs until it is stopped
    abps site proposals THIS                                         what you are asked; nothing runs unasked
    abps site status THIS                                            what was done, and what left
""",
    "relay": """This folder belongs to the relay, which carries messages between hospitals.

    abps site check THIS
    abps site start THIS        runs until it is stopped
""",
    "operator": """This folder belongs to the operator, who proposes studies. Keep its key to yourself.

    abps site gather --kit THIS --study NAME --out codebook.json
    abps site submit --kit THIS --study NAME --codebook codebook.json
""",
}


def _own_readme(kit: Path, who: str) -> None:
    """Our own words; and none of the engine's scripts, which would start it without our limits."""
    for pattern in ("*.sh", "*.ipynb", "readme.txt"):
        for path in kit.rglob(pattern):
            path.unlink()
    files.write_text(kit / "readme.txt", _README[who])


def _own_rules(kit: Path) -> None:
    """What this participant allows: our classes and nothing else, no code in jobs, no shell."""
    local = kit / "local"
    default = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    default["class_allow_list"] = list(ALLOW)
    default["class_list_enforcement_mode"] = "enforce"
    default["allow_log_streaming"] = False  # a site's log stays at the site
    components = default.get("components", [])
    default["components"] = [c for c in components if c["id"] != "site_log_streamer"]
    _own_launcher(default["components"])
    files.write_json(local / "resources.json", default)
    rules = {"project_admin": _RIGHTS, "org_admin": "none", "lead": "none", "member": "none"}
    files.write_json(local / "authorization.json", {"format_version": "1.0", "permissions": rules})
    files.write_json(local / "log_config.json", _logs(local))


def _own_launcher(components: list[dict[str, Any]]) -> bool:
    """Let jobs run in our form of the engine's process. Returns whether something was changed."""
    ours = {
        "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher": "SiteLauncher",
        "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher": "RelayLauncher",
    }
    found = [c for c in components if c.get("path") in ours]
    for component in found:
        component["path"] = f"abps.sites.flare.launchers.{ours[component['path']]}"
    return bool(found)


def _logs(local: Path) -> dict[str, Any]:
    """Logs as lines of JSON that do not grow without end, and no word of the engine about every message."""
    given = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    given["handlers"] = {name: given["handlers"][name] for name in ("consoleHandler", "jsonFileHandler")}
    given["handlers"]["jsonFileHandler"] |= {"maxBytes": LOG_BYTES, "backupCount": LOG_FILES}
    given["filters"] = {}
    quiet = {name: {"level": "WARNING"} for name in _CHATTY}
    given["loggers"] = {"root": {"level": "INFO", "handlers": list(given["handlers"])}, **quiet}
    return dict(given)


def command(kit: Path) -> tuple[list[str], dict[str, str]]:
    """The process that runs from a kit: its command and its environment."""
    kit = Path(kit).absolute()
    given = participant_kit(kit)
    # This Python and this abps, not whatever is first on the path or relative to another folder.
    package = str(Path(files.__file__).resolve().parents[1])
    environment = (
        _LEAN
        | os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))}
    )
    environment.setdefault(intake.VARIABLE, str(intake.MOST))
    start = [sys.executable, "-u", "-m"]
    if given.role is Role.RELAY:
        _own_storage(kit)
        environment.setdefault("NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", OUTCOME_WAIT)
        start += ["abps.sites.flare.participant", "-m", str(kit), "-s", "fed_server.json"]
        return [
            *start,
            "--set",
            "secure_train=true",
            f"org={ORGANISATION}",
            "config_folder=config",
        ], environment
    start += ["abps.sites.flare.participant", "-m", str(kit), "-s", "fed_client.json"]
    names = [f"uid={given.name}", f"org={ORGANISATION}", "config_folder=config"]
    return [*start, "--set", "secure_train=true", *names], environment


def _own_storage(kit: Path) -> None:
    """The relay keeps its jobs in its own folder, not in everybody's /tmp."""
    path = kit / "local" / "resources.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    state = files.folder(kit / "state")
    for component in data.get("components", []):
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(state / "jobs")
    snapshots = data.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
    if snapshots is not None:
        snapshots["root_dir"] = str(state / "snapshots")
    files.write_json(path, data)
