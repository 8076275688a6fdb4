"""The package as it is uploaded: what it holds, what it says of itself, that it runs without a checkout."""

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the wheel and the source distribution, built from a copy of the tracked files."""
    place = tmp_path_factory.mktemp("dist")
    copy = place / "copy"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("needs a checkout")
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    return place / "dist"


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("*.whl"))


def test_the_index_would_take_both(dist):
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    subprocess.run(check, check=True, capture_output=True)
    assert len(list(dist.iterdir())) == 2


def test_the_wheel_holds_every_module_and_file_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        f"abps/{path.relative_to(ROOT / 'src/abps').as_posix()}"
        for path in (ROOT / "src/abps").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == ours
    assert {"abps/py.typed", "abps/report/templates/base.html"} <= names
    assert wheel.stat().st_size < 2_000_000


def test_the_source_distribution_can_test_itself(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "tests/conftest.py", "docs/api.md", "tools/sbom.py", "LICENSE"} <= inside
    assert not any(name.endswith(".pyc") for name in inside)


def test_the_metadata_says_what_it_is(wheel):
    whole = zipfile.ZipFile(wheel)
    text = whole.read(next(name for name in whole.namelist() if name.endswith("/METADATA"))).decode()
    about = email.message_from_string(text)
    assert (
        about["License-Expression"] == "Apache-2.0" and about["Description-Content-Type"] == "text/markdown"
    )
    assert about["Requires-Python"] == "<3.14,>=3.11"
    classes = about.get_all("Classifier")
    tested = [line for line in classes if line.startswith("Programming Language :: Python :: 3.")]
    workflow = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert tested and all(f'"{line.rpartition(" ")[2]}"' in workflow for line in tested)
    assert "Typing :: Typed" in classes and "hospitals" in about["Keywords"]
    assert "all" in about.get_all("Provides-Extra")


def test_all_has_every_extra_that_users_need():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything[5:-1].split(",")) == set(extras) - {"all", "docs", "test"}


def test_the_default_install_needs_no_extra():
    """Without the modules of extras all can be imported but the real federation, its keys and the app."""
    code = """
import importlib, pkgutil, sys
extras = ("cryptography nvflare psutil onnx onnxruntime dp_accounting fastexcel submitit mlflow tensorboard "
          "starlette uvicorn multipart pandas statsmodels lifelines")
sys.modules.update(dict.fromkeys(extras.split()))
import abps
for name in abps.__all__:
    getattr(abps, name)
apart = ("abps.sites", "abps.privacy.secure_sum", "abps.app", "abps.cli.site_", "abps.__main__",
         "abps.lab.rehearsal")  # a rehearsal runs the real federation
for module in pkgutil.walk_packages(abps.__path__, "abps."):
    if not module.name.startswith(apart):
        importlib.import_module(module.name)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_it_runs_from_the_wheel_alone(wheel, tmp_path):
    target = tmp_path / "target"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True, capture_output=True)
    code = (
        "import abps, sys; from pathlib import Path; "
        f"assert Path(abps.__file__).is_relative_to({str(target)!r}); "
        "assert abps.load('icu-synthetic:centers=6,stays=600').size == 6; "
        "from abps.cli.main import main; sys.argv = ['abps', '--version']; main()"
    )
    environment = {"PYTHONPATH": str(target), "PATH": "", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"abps {PROJECT['version']}"
