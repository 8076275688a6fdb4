"""From "four hospitals" to a network: certificates, startup kits, and the processes that run from them; and
what only the authority can do: certify a member's new key, and expel a member, in a network that goes on.

A kit is a folder for one participant: its certificate and key, the relay's address, and a ``local`` folder of
its own with what it allows: the two classes of ours that a job names, no code, no shell for the operator.
"""

import contextlib
import datetime
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

from abps import files
from abps.core.errors import RequestError, nearest
from abps.sites.consent import kit as membership
from abps.sites.consent.keys import OPERATOR_ROLE, CertificateRequest
from abps.sites.consent.kit import Kit, RevocationList, Role, participant_kit, read_kit
from abps.sites.consent.preflight import proxy_of
from abps.sites.flare import process

#: What a site must allow for our jobs, and nothing more.
ALLOW = (
    "abps.sites.flare.app.FlareSite",
    "abps.sites.flare.app.FlareScheduler",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.collab.runtime.controller.CollabController",
)

#: Seconds that a job stays open for a site that died; the engine's own default is fifteen minutes.
OUTCOME_WAIT = "5"

#: The engine groups participants by organisation; for us they are all one federation.
ORGANISATION = "federation"

ROOT_DAYS = 3650  # days that a new authority lives; certificates of members live shorter, and are rotated
DAYS = 360  # days that a member's new certificate is good for, if the authority lives as long
STATE = Path("abps", "state", "cert.json")  # where the authority keeps its key and the members' certificates
MEMBERS = "members.json"  # the names of all sites, in the ``local`` folder of the operator's kit
LOG_BYTES, LOG_FILES = 5 * 2**20, 5  # bytes of a log file, and how many are kept

#: Parts of the engine that write a line or two for every message.
_CHATTY = ("nvflare.collab", "nvflare.fuel.f3.cellnet", "nvflare.private.aux_runner")

#: Warns of the driver that is left out (:func:`abps.sites.flare.process.main`).
_DRIVERS = "nvflare.fuel.f3.drivers.driver_manager"

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
    "POLARS_MAX_THREADS": "1",
    "_RJEM_MALLOC_CONF": "narenas:1,dirty_decay_ms:0,muzzy_decay_ms:0",  # Polars has an allocator of its own
    "NVFLARE_STREAMING_CHUNK_SIZE": "131072",  # room that the engine takes for a message, else a megabyte
}

#: What an operator may do by the engine: run and stop jobs that carry no code. At a site it may not inspect,
#: configure or stop the process.
_RIGHTS = dict.fromkeys(("submit_job", "manage_job", "download_job", "view", "operate"), "any")
_RIGHTS |= dict.fromkeys(("clone_job", "shell_commands", "byoc"), "none")


@dataclass(frozen=True)
class Network:
    relay: Path
    sites: dict[str, Path]
    operator: Path
    authority: Path


class MemberCertificates(CertBuilder):
    """The engine's builder of certificates, without the members' private keys that it would keep: a kit is
    made once, and a member that lost it makes another key."""

    def _build_write_cert_pair(self, participant: Any, base_name: str, ctx: Any) -> None:
        if self.persistent_state.has_subject(participant.subject):
            return  # its kit was made before, and is not made again
        super()._build_write_cert_pair(participant, base_name, ctx)

    def _validate_existing_root_validity(self) -> None:
        """An authority that is there keeps the days that it has."""

    def finalize(self, project: Any, ctx: Any) -> None:
        """Write nothing before all kits are there (:func:`provision`)."""

    def kept(self) -> dict[str, Any]:
        """What the authority needs later: its own key, and the members' certificates."""
        return {
            name: {"cert": value["cert"]} if isinstance(value, dict) else value
            for name, value in self.persistent_state.content.items()
        }


def provision(
    out: Path,
    sites: Sequence[str],
    host: str,
    port: int = 8002,
    operator: str = "operator@federation.example",
) -> Network:
    """Make certificates and startup kits; a second call with more sites adds kits and keeps the others. host:
    the name by which the sites reach the relay; ``localhost`` keeps everything on this machine."""
    _check(sites, host, port, operator)
    authority = files.folder(out / "authority")
    authority.chmod(0o700)  # the authority's key lies here
    state = authority / STATE
    known = json.loads(state.read_text(encoding="utf-8")) if state.is_file() else {}
    roles = {host: Role.RELAY, **dict.fromkeys(sites, Role.SITE), operator: Role.OPERATOR}
    kits = {name: out / ("relay" if name == host else name) for name in roles if name not in known}
    for kit in kits.values():
        if kit.exists():
            raise RequestError(f"{kit} is no kit of a member of this network; move it away, and try again")
    certificates = MemberCertificates(ROOT_DAYS)
    fresh = _build(authority, roles, port, certificates)
    try:
        for name, kit in kits.items():
            shutil.copytree(fresh / name, kit)
            _write_readme(kit, name, roles[name])
            if roles[name] is not Role.OPERATOR:
                _write_rules(kit, roles[name])
        # Last: who is recorded here has its kit, which is never made again.
        files.write_secret(state, files.as_json(certificates.kept()))
    except (OSError, RequestError) as error:  # half a kit would only be in the way
        for kit in kits.values():
            shutil.rmtree(kit, ignore_errors=True)
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{out}: the kits could not be written; make room or choose another") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    members = Authority(out)
    members.readmit(sites)
    if (out / operator / "local").is_dir():
        files.write_json(out / operator / "local" / MEMBERS, sorted(members.sites()))
    return Network(out / "relay", {name: out / name for name in sites}, out / operator, authority)


def _build(authority: Path, roles: Mapping[str, Role], port: int, certificates: MemberCertificates) -> Path:
    """Let the engine build the kits of all participants; the folder where they are."""
    kinds: dict[Role, dict[str, Any]] = {
        Role.RELAY: {"type": "server", "fed_learn_port": port, "admin_port": port},
        Role.SITE: {"type": "client"},
        Role.OPERATOR: {"type": "admin", "role": OPERATOR_ROLE},
    }
    project = {
        "api_version": 3,
        "name": "abps",
        "description": "made by abps site provision",
        "participants": [{"name": n, "org": ORGANISATION, **kinds[role]} for n, role in roles.items()],
    }
    static = StaticFileBuilder(config_folder="config", scheme="grpc")
    builders = [WorkspaceBuilder(["master_template.yml"]), static, certificates]
    chatter = io.StringIO()
    with contextlib.redirect_stdout(chatter), contextlib.redirect_stderr(chatter):
        made = Provisioner(str(authority), builders).provision(prepare_project(project))
    if made.get("build_error") or "current_prod_dir" not in made:
        why = (chatter.getvalue().strip() or "no reason given").splitlines()[-1]
        raise RequestError(f"{authority.parent}: the kits could not be made ({why}); mend that and try again")
    return Path(made["current_prod_dir"])


def provisioned(operator: Path) -> tuple[str, ...]:
    """The sites that an operator's kit was provisioned with."""
    return tuple(json.loads((Path(operator) / "local" / MEMBERS).read_text(encoding="utf-8")))


def _check(sites: Sequence[str], host: str, port: int, operator: str) -> None:
    if len(sites) < 2:
        raise RequestError("a network needs at least 2 sites; name them all")
    for name in sites:
        if list(sites).count(name) > 1:
            raise RequestError(f"the site {name!r} is named twice; site names must differ")
        if not _SITE_NAME.match(name) or name.lower() in _RESERVED:
            raise RequestError(f"the site name {name!r} cannot be used; letters, digits, -, _, no 'server'")
    if not _HOST_NAME.match(host) or host in sites:
        raise RequestError(f"host={host!r} is not a host name of its own; give the relay's DNS name")
    if not 1 <= port <= 65535:
        raise RequestError(f"port={port}: choose 1 to 65535")
    if not _EMAIL.match(operator):
        raise RequestError(f"operator={operator!r}: the engine knows operators by e-mail address; give one")


class Authority:
    """The authority of the network whose kits are in ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.folder = self.out / "authority"
        self.list = self.folder / membership.REVOKED
        self._path = self.folder / STATE
        if not self._path.is_file():
            raise RequestError(f"{out} has no authority; name the folder that `abps site provision` made")
        self._state: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        self._root_pem = str(self._state["root_cert"]).encode()
        self._root = x509.load_pem_x509_certificate(self._root_pem)
        self._key: Any = load_pem_private_key(str(self._state["root_pri_key"]).encode(), None)

    def revoked(self) -> RevocationList:
        if not self.list.is_file():
            return RevocationList()
        return membership.from_text(self.list.read_text(encoding="utf-8"), self._root_pem)

    def revoke(self, member: str) -> None:
        """Expel a member: its certificate is not to be trusted any more, and nobody is to talk to it."""
        old = self._certificate(member)
        if self._role(member) is Role.RELAY:
            raise RequestError(f"{member!r} is the relay; give it a new certificate instead")
        self._publish(self.revoked().without(member, old.serial_number, expel=True))
        del self._state[member]  # whoever gets this name again gets another key
        self._write_state()

    def certify(self, request: CertificateRequest, fingerprint: str = "") -> tuple[Path, datetime.datetime]:
        """Give a member a certificate for a key that it has made itself, and revoke the old one: where it is,
        and when it ends.  fingerprint: of the request, as somebody at the member read it out; needed unless
        the request is signed with the member's present key: whoever can send a file could ask in its name."""
        member, old = request.member, self._certificate(request.member)
        if fingerprint and not request.matches(fingerprint):
            why = f"the request has the fingerprint {request.fingerprint}, not {fingerprint}"
            raise RequestError(f"{why}: not of the same key; do not certify it, and ask for another")
        if not fingerprint and not request.signed_by(old.public_bytes(Encoding.PEM)):
            what = "let somebody there read out its fingerprint, and name it with --fingerprint"
            raise RequestError(f"the request is not signed with the present key of {member}; {what}")
        now, end = datetime.datetime.now(datetime.UTC), self._root.not_valid_after_utc
        if end <= now:
            raise RequestError(f"the authority itself ended on {end:%Y-%m-%d}; provision into a new folder")
        until, role = min(end, now + datetime.timedelta(days=DAYS)), self._role(member)
        issuer = self._root.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        certificate = generate_cert(
            subject=Identity(member, ORGANISATION, OPERATOR_ROLE if role is Role.OPERATOR else None),
            issuer=Identity(issuer),
            signing_pri_key=self._key,
            subject_pub_key=request.public,
            server_default_host=member if role is Role.RELAY else None,
            not_valid_before=now - datetime.timedelta(minutes=5),  # clocks differ
            not_valid_after=until,
        )
        self._state[member] = {"cert": serialize_cert(certificate).decode("ascii")}
        self._write_state()
        path = files.folder(self.out / "certified") / f"{member}.crt"
        files.write_text(path, self._state[member]["cert"])
        self._publish(self.revoked().without(member, old.serial_number, expel=False))
        return path, until

    def readmit(self, names: Sequence[str]) -> None:
        """Take members that are provisioned anew off the list of the expelled."""
        back, found = sorted(set(self.revoked().expelled) & set(names)), self.revoked()
        for name in back:
            found = found.without(name, None, expel=False)
        if back:
            self._publish(found)

    def sites(self) -> list[str]:
        return [name for name in self._members() if self._role(name) is Role.SITE]

    def certificate(self, member: str) -> str:
        return self._certificate(member).public_bytes(Encoding.PEM).decode("ascii")

    def _members(self) -> list[str]:
        return [name for name, value in self._state.items() if isinstance(value, dict) and "cert" in value]

    def _certificate(self, member: str) -> x509.Certificate:
        known = self._members()
        if member not in known:
            raise RequestError(f"no member is called {member!r}{nearest(member, known)}")
        return x509.load_pem_x509_certificate(str(self._state[member]["cert"]).encode())

    def _role(self, member: str) -> Role:
        """Operators are known by e-mail address, the relay by the host that the kits call."""
        if "@" in member:
            return Role.OPERATOR
        hosts = set()
        for folder in self.out.iterdir():
            with contextlib.suppress(RequestError):
                hosts.add(read_kit(folder).host)
        return Role.RELAY if member in hosts else Role.SITE

    def _write_state(self) -> None:
        files.write_secret(self._path, files.as_json(self._state))

    def _publish(self, revoked: RevocationList) -> None:
        """Sign the list, keep it, and put it into every kit that is on this machine."""
        text = revoked.to_text(self._key)
        kept = [folder / "local" for folder in sorted(self.out.iterdir()) if (folder / "local").is_dir()]
        for folder in (self.folder, *kept):
            files.write_text(folder / membership.REVOKED, text)


#: Written into a kit.
_README = """This is the startup kit of {} ({}). Whoever has its key is {} to all others: keep it to
yourself, and pass nothing of `startup` on. `abps site --help` says what to do with it; first:

    abps site check THIS-FOLDER
"""


def _write_readme(kit: Path, name: str, role: Role) -> None:
    """Our own readme; and none of the engine's scripts, which would start it without our limits."""
    for pattern in ("*.sh", "*.ipynb", "readme.txt"):
        for path in kit.rglob(pattern):
            path.unlink()
    files.write_text(kit / "readme.txt", _README.format(name, role, name))


def _write_rules(kit: Path, role: Role) -> None:
    local = kit / "local"
    default = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    default["class_allow_list"] = list(ALLOW)
    default["class_list_enforcement_mode"] = "enforce"
    default["allow_log_streaming"] = False  # a site's log stays at the site
    default["components"] = [c for c in default.get("components", []) if c["id"] != "site_log_streamer"]
    files.write_json(local / "resources.json", default)
    rights = _RIGHTS | ({"download_job": "none", "operate": "none"} if role is Role.SITE else {})
    rules = {"project_admin": rights, "org_admin": "none", "lead": "none", "member": "none"}
    files.write_json(local / "authorization.json", {"format_version": "1.0", "permissions": rules})
    files.write_json(local / "log_config.json", _logs(local))


def _logs(local: Path) -> dict[str, Any]:
    """Logs as lines of JSON that do not grow without end, and no word of the engine about every message."""
    given = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    given["handlers"] = {name: given["handlers"][name] for name in ("consoleHandler", "jsonFileHandler")}
    given["handlers"]["jsonFileHandler"] |= {"maxBytes": LOG_BYTES, "backupCount": LOG_FILES}
    given["filters"] = {}
    quiet = {name: {"level": "WARNING"} for name in _CHATTY} | {_DRIVERS: {"level": "ERROR"}}
    given["loggers"] = {"root": {"level": "INFO", "handlers": list(given["handlers"])}, **quiet}
    return dict(given)


def command(kit: Path) -> tuple[list[str], dict[str, str]]:
    """The process that runs from a kit: its command and its environment."""
    given = participant_kit(Path(kit).absolute())
    # This Python and this abps, not whatever is first on the path or relative to another folder.
    package = str(Path(files.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    environment = _LEAN | os.environ | {"PYTHONPATH": path}
    if proxy := proxy_of(given):
        environment["grpc_proxy"] = proxy.geturl()
    environment.setdefault(process.VARIABLE, str(process.MOST))
    _update_resources(given)
    engine, config, names = process.SITE, "fed_client.json", [f"uid={given.name}"]
    if given.role is Role.RELAY:
        environment.setdefault("NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", OUTCOME_WAIT)
        engine, config, names = process.RELAY, "fed_server.json", []
    start = [sys.executable, "-u", "-m", process.MODULE, engine, "-m", str(given.folder), "-s", config]
    settings = ["secure_train=true", *names, f"org={ORGANISATION}", "config_folder=config"]
    return [*start, "--set", *settings], environment


def _update_resources(kit: Kit) -> None:
    """Keep the relay's jobs in its own folder, wherever that is now, and not in /tmp."""
    path = kit.local / "resources.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for component in data.get("components", []):
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(files.folder(kit.folder / "state") / "jobs")
    snapshots = data.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
    if snapshots is not None:
        snapshots["root_dir"] = str(kit.folder / "state" / "snapshots")
    files.write_json(path, data)
