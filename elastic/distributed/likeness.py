"""How this worker computes, measured; and the check that all workers of a world compute alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from elastic.config.model import TrainingSettings
from elastic.distributed import cuda
from elastic.distributed.group import Collectives
from elastic.errors import NumericsDiffer, PeerLost
from elastic.plan.likeness import Likeness, refuse

_ADVICE = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_CPUINFO = Path("/proc/cpuinfo")
_TELLING = ("avx", "fma", "amx", "f16c", "sse", "asimd", "sve")


def measure(
    training: TrainingSettings, *, device: str, environ: Mapping[str, str], cpuinfo: Path = _CPUINFO
) -> Likeness:
    """This worker's likeness, with its present number of threads."""
    build = [line for line in torch.__config__.show().splitlines() if "CPU capability usage" not in line]
    advice = [f"{name}={environ[name]}" for name in _ADVICE if name in environ]
    return Likeness(
        torch=str(torch.__version__),
        build=_short("\n".join(build)),
        instructions=f"{torch.backends.cpu.get_cpu_capability()} ({_processor(cpuinfo)})",
        device=device if device == "cpu" else cuda.name(device),
        threads=torch.get_num_threads(),
        precision=" ".join([torch.get_float32_matmul_precision(), *advice]),
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        seed=training.seed,
    )


def check_alike(own: Likeness, *, recorded: Likeness | None, group: Collectives) -> None:
    """Every rank of a new world calls this.

    Raises:
        NumericsDiffer: this worker does not compute as the run does, and must not take part.
        PeerLost: another one does not: the world is to be formed anew without it.
    """
    every = group.gather(own.to_plain())
    found = None
    if every is not None:
        refusals = refuse([Likeness.from_plain(each) for each in every], recorded=recorded)
        found = {str(refusal.rank): refusal.reason for refusal in refusals}
    refused: dict[str, str] = group.broadcast(found)
    if (reason := refused.get(str(group.rank))) is not None:
        raise NumericsDiffer(
            f"this worker would not compute the same bits as the others (training.numerics is exact): {reason}. Use "
            "the same software, processor and settings here, or give training.numerics: plain to all"
        )
    if refused:
        raise PeerLost(f"workers that do not compute alike are sent away: {', '.join(refused)}")


def _processor(cpuinfo: Path) -> str:
    """A digest of the vendor and the instructions that math libraries choose their code by; "" where nobody tells."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts.setdefault(name.strip().lower(), value.strip())
    flags = (facts.get("flags") or facts.get("features", "")).split()
    telling = sorted(flag for flag in flags if flag.startswith(_TELLING))
    vendor = facts.get("vendor_id") or facts.get("cpu implementer", "")
    return f"{vendor} {_short(' '.join(telling))}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
