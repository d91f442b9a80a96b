"""Where and with what something was measured."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.benchmarks.apart import ROOT

_PACKAGES = (
    "langchain-core langchain langgraph langsmith langfuse openinference-instrumentation-langchain "
    "opentelemetry-sdk mlflow-tracing pydantic sqlalchemy numpy matplotlib"
).split()


def description() -> dict[str, Any]:
    """The processor, the memory and the system."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        told = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        told = None
    return told[1] if told else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def versions() -> dict[str, str]:
    """Versions of all that takes part and is installed; of this project, its commit."""
    found = {"kp-langchain": _commit()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    from kp_langchain import __version__

    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return __version__
    return f"{__version__} ({done.stdout.strip()})" if done.returncode == 0 else __version__


class OthersBusy:
    """How busy others keep the machine while we measure, in cores; None where none can tell."""

    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def cores(self, during_s: float) -> float | None:
        """Cores that others kept busy, on average of the last `during_s` seconds."""
        now = _cpu_seconds()
        if now is None or self._before is None:
            return None
        return round(max(0.0, (now - self._before) / during_s), 2)


def _cpu_seconds() -> float | None:
    """CPU seconds of all processes but ours and those that we started and that have ended."""
    try:
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, ticks)
    everybody_s = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return everybody_s - sum(usage.ru_utime + usage.ru_stime for usage in usages)
