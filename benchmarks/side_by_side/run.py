"""The same federation with the same work in other tools, side by side.

    python benchmarks/side_by_side/run.py --environments FOLDER

Makes a virtual environment for each tool in FOLDER (once), then

1. *checks the work*: three rounds with whole-center batches and no dropout, where nothing is random, so that
   every tool must reach the loss of a double-precision reference in NumPy within 1e-5 (single precision gives
   1e-7; one local step more or less, or Adam without its correction, differs by more than 1e-3: printed);
2. *takes times*: batches of 128 and dropout, tools in turns, rounds after the first two. A time counts only
   if the final loss agrees with the plain loop's within 1 % (orders and masks are random).

Center-rounds per second, the ratio to this package within each turn, and the peak memory of all processes of
a tool (proportional set size, Linux). Of each tool the fastest form that passed counts. A tool that cannot be
installed or fails is reported with its last words.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import work

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

WORK_TOLERANCE = 1e-5
LOSS_TOLERANCE = 0.01


@dataclass(frozen=True)
class Tool:
    """A contestant: its script, what to install (nothing: it runs beside this package), and its forms.

    variants: name -> (argument of the script, threads or none for all cores, worker processes).
    home: the folder of its environment.
    """

    name: str
    script: str
    install: tuple[str, ...] = ()
    variants: dict[str, tuple[str, int | None, int]] = field(default_factory=lambda: {"": ("", None, 1)})
    home: str = ""


TORCH = "torch>=2.5,<2.14"
TOOLS = (
    Tool("abps", "tool_abps.py"),
    Tool("plain loop", "tool_loop.py", variants={"1 thread": ("", 1, 1), "all threads": ("", None, 1)}),
    Tool("FedJAX", "tool_fedjax.py", ("fedjax", "jax[cpu]"), {"jit": ("jit", None, 1)}),
    Tool(  # its pmap back-end calls functions that later versions of JAX no longer have
        "FedJAX",
        "tool_fedjax.py",
        ("fedjax", "jax[cpu]==0.5.3", "dm-haiku==0.0.16", "flax<0.11", "orbax-checkpoint<0.11.14"),
        {"jit, jax 0.5": ("jit", None, 1), "pmap, jax 0.5": ("pmap", None, 1)},
        "fedjax-jax0.5",
    ),
    Tool(
        "pfl-research",
        "tool_pfl.py",
        ("pfl[pytorch]", TORCH),
        {"1 worker": ("", None, 1), f"{CORES} workers": ("", None, CORES)},
    ),
    Tool("Flower", "tool_flower.py", ("flwr[simulation]", TORCH)),
)


class Failed(Exception):
    """A tool could not be installed or run; the message says what happened."""


def environment(tool: Tool, folder: Path) -> Path:
    """The Python of a tool's own environment, made if it is not there."""
    if not tool.install:
        return Path(sys.executable)
    home = folder / (tool.home or tool.script.removeprefix("tool_").removesuffix(".py"))
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        print(f"{tool.name}: installing {' '.join(tool.install)} into {home}", file=sys.stderr)
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tool.install],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
        ready.touch()
    return python


@dataclass(frozen=True)
class Result:
    """One run: seconds of every round, final loss, peak memory in MB, versions."""

    seconds: list[float]
    loss: float
    peak_mb: float
    versions: str


def run(
    tool: Tool,
    variant: str,
    python: Path,
    folder: Path,
    rounds: int,
    batch: int,
    dropout: float,
    epochs: int = 2,
) -> Result:
    """One run of a tool in processes of its own."""
    argument, threads, workers = tool.variants[variant]
    out = folder / "weights.npz"
    out.unlink(missing_ok=True)
    start = [str(python)]
    if workers > 1:
        start = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [
        *start,
        str(HERE / tool.script),
        str(folder),
        *("--rounds", str(rounds), "--batch", str(batch), "--dropout", str(dropout)),
        *("--epochs", str(epochs), "--threads", str(threads or CORES), "--out", str(out)),
        *(["--variant", argument] if argument else []),
    ]
    hidden = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    variables = {k: v for k, v in os.environ.items() if k not in hidden}
    # Actors of their own processes must find the modules beside the script.
    variables["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
        watch = Watch(process.pid)
        watch.start()
        said, _ = process.communicate()
        peak = watch.stop()
        errors.seek(0)
        words = [line for line in errors.read().splitlines() if line.strip()]
    lines = [line for line in said.splitlines() if line.startswith('{"seconds"')]
    if process.returncode or not lines or not out.exists():
        raise Failed(words[-1] if words else f"exit code {process.returncode}, nothing said")
    found = json.loads(lines[-1])
    return Result(found["seconds"], work.loss(folder, work.handed_in(out)), peak, found["versions"])


class Watch(threading.Thread):
    """Notes the largest memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.over = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            self.peak = max(self.peak, sum(memory_mb(pid) for pid in family(self.pid)))

    def stop(self) -> float:
        self.over.set()
        self.join()
        return self.peak


def family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def memory_mb(pid: int) -> float:
    """Proportional set size: shared pages are counted once over all processes."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def reference_loss(folder: Path, rounds: int, epochs: int) -> float:
    """The loss after some rounds of whole-center batches, in double precision and plain NumPy."""
    with np.load(folder / "federation.npz") as data:
        x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
        shared = [data[f"w{k}"].astype(np.float64) for k in range(2 * (len(work.SIZES) - 1))]
    for _ in range(rounds):
        sums = [np.zeros_like(w) for w in shared]
        for rows, labels in zip(x, y):
            w = [s.copy() for s in shared]
            first, second = [np.zeros_like(s) for s in w], [np.zeros_like(s) for s in w]
            for step in range(1, epochs + 1):
                for k, g in enumerate(gradient(w, rows, labels)):
                    first[k] = 0.9 * first[k] + 0.1 * g
                    second[k] = 0.999 * second[k] + 0.001 * g * g
                    m, v = first[k] / (1 - 0.9**step), second[k] / (1 - 0.999**step)
                    w[k] = w[k] - work.LEARNING_RATE * m / (np.sqrt(v) + 1e-8)
            sums = [s + each for s, each in zip(sums, w)]
        shared = [s / len(x) for s in sums]
    return work.loss(folder, shared)


def gradient(w: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Of the mean log-loss, by hand."""
    inputs = [x]
    for k in range(0, len(w) - 2, 2):
        inputs.append(np.maximum(inputs[-1] @ w[k] + w[k + 1], 0))
    logit = (inputs[-1] @ w[-2] + w[-1])[:, 0]
    back = (1 / (1 + np.exp(-logit)) - y)[:, None] / len(y)
    found: list[np.ndarray] = []
    for k in range(len(w) - 2, -1, -2):
        found = [inputs[k // 2].T @ back, back.sum(axis=0), *found]
        back = (back @ w[k].T) * (inputs[k // 2] > 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, required=True, help="folder of the virtual environments")
    parser.add_argument("--tools", default="", help="some of them, with commas; default: all")
    parser.add_argument("--centers", type=int, default=230)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a timed run (two of them warm up)")
    parser.add_argument("--turns", type=int, default=3, help="timed runs of every tool, in turns")
    parser.add_argument("--json", type=Path, help="write everything that was found")
    parser.add_argument("--csv", type=Path, help="write the rate of the best form of each tool")
    a = parser.parse_args()
    wanted = [name.strip().lower() for name in a.tools.split(",") if name.strip()]
    tools = [t for t in TOOLS if not wanted or t.name.lower() in wanted]
    a.environments.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder_name:
        found = compare(tools, a, Path(folder_name))
    report(found, a)
    if a.json:
        a.json.write_text(json.dumps(found, indent=1) + "\n")


def compare(tools: list[Tool], a: argparse.Namespace, folder: Path) -> dict:
    """Install, check, time."""
    work.make(folder, a.centers, a.rows)
    say = lambda text: print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)  # noqa: E731
    right, less = reference_loss(folder, 3, 2), reference_loss(folder, 3, 1)
    say(f"reference: loss {right:.6f} after 3 rounds (with one local step less: {less:.6f})")
    found: dict = {"cores": CORES, "reference_loss": right, "one_step_less": less, "failed": {}, "runs": {}}
    running: list[tuple[Tool, str, Path]] = []
    for tool in tools:
        try:
            python = environment(tool, a.environments)
        except Failed as problem:
            found["failed"][tool.name] = f"cannot be installed: {problem}"
            say(f"{tool.name}: {problem}")
            continue
        for variant in tool.variants:
            label = f"{tool.name} {variant}".strip()
            try:
                checked = run(tool, variant, python, folder, 3, a.rows, 0.0)
            except Failed as problem:
                found["failed"][label] = str(problem)
                say(f"{label}: failed: {problem}")
                continue
            off = abs(checked.loss - right)
            if not off <= WORK_TOLERANCE:
                found["failed"][label] = f"does other work: loss {checked.loss:.6f}, expected {right:.6f}"
                say(f"{label}: {found['failed'][label]}")
                continue
            say(f"{label}: same work (loss differs by {off:.1e}); {checked.versions}")
            running.append((tool, variant, python))
            found["runs"][label] = {
                "tool": tool.name,
                "versions": checked.versions,
                "work_difference": off,
                "turns": [],
            }
    for turn in range(a.turns):
        for tool, variant, python in running:
            label = f"{tool.name} {variant}".strip()
            try:
                timed = run(tool, variant, python, folder, a.rounds, 128, work.DROPOUT)
            except Failed as problem:
                found["failed"][label] = str(problem)
                continue
            rate = a.centers / statistics.median(timed.seconds[2:])
            found["runs"][label]["turns"].append(
                {"center_rounds_per_s": rate, "loss": timed.loss, "peak_mb": timed.peak_mb}
            )
            say(f"turn {turn + 1}: {label}: {rate:,.0f}/s, loss {timed.loss:.4f}, {timed.peak_mb:,.0f} MB")
    return found


def report(found: dict, a: argparse.Namespace) -> None:
    """A table of the best form of each tool, in Markdown."""
    loops = [t["loss"] for r in found["runs"].values() if r["tool"] == "plain loop" for t in r["turns"]]
    expected = statistics.median(loops) if loops else float("nan")
    best: dict[str, tuple[float, str]] = {}
    for label, each in found["runs"].items():
        losses = [t["loss"] for t in each["turns"]]
        each["agrees"] = bool(losses) and all(abs(x / expected - 1) <= LOSS_TOLERANCE for x in losses)
        if not each["agrees"]:
            found["failed"].setdefault(label, f"final losses {losses} are not within 1 % of {expected:.4f}")
            continue
        rate = statistics.median(t["center_rounds_per_s"] for t in each["turns"])
        if rate > best.get(each["tool"], (0.0, ""))[0]:
            best[each["tool"]] = (rate, label)
    print(f"\n{a.centers} centers × {a.rows} rows × {work.SIZES[0]} features, {found['cores']} cores\n")
    print("| tool | center-rounds/s | abps is faster by | final loss | peak memory | versions |")
    print("|---|---|---|---|---|---|")
    ours = found["runs"].get("abps", {"turns": []})["turns"]
    for rate, label in sorted(best.values(), reverse=True):
        each = found["runs"][label]
        ratios = [
            mine["center_rounds_per_s"] / its["center_rounds_per_s"] for mine, its in zip(ours, each["turns"])
        ]
        times = f"{statistics.median(ratios):.1f} ×" if ratios else ""
        loss = statistics.median(t["loss"] for t in each["turns"])
        peak = max(t["peak_mb"] for t in each["turns"])
        print(f"| {label} | {rate:,.0f} | {times} | {loss:.4f} | {peak:,.0f} MB | {each['versions']} |")
    if a.csv:
        lines = [f"{tool},{rate:.0f}" for tool, (rate, _) in best.items()]
        a.csv.write_text("\n".join(["tool,center-rounds per second", *lines]) + "\n")
    for label, problem in found["failed"].items():
        print(f"\nNo time for {label}: {problem}")


if __name__ == "__main__":
    main()
