# SPDX-License-Identifier: Apache-2.0
"""Which processes are one job, and which rank each has: from arguments, else from the launcher that started the process.

    rank, world size   arguments; torch.distributed where it is initialised; torchrun's variables; Slurm's (of a job step); Open
                       MPI's; those of MPICH, Intel MPI and MVAPICH; else one process
    job                argument; Slurm's job and step; the launcher's run id with its master address; an MPI launcher's run
    replicas           R neighbours in rank get the same batches: data rank = rank // R, data world = world // R

Pure: a function of its arguments, nothing is opened or asked.
"""
from __future__ import annotations

import hashlib
from typing import Any, Mapping, NamedTuple, Optional

from .errors import InvalidError


class Launch(NamedTuple):
    """This process among those of its job."""

    rank: int  # data-parallel
    world: int
    replica: int  # which of the processes with this data rank
    job: Optional[str]  # what the processes have in common; None: one process, no name
    source: str  # who said so, in words


# (name, rank, world size, what must be there besides)
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),  # without a step: a shell, whatever NTASKS says
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", None),
    ("MPI", "PMI_RANK", "PMI_SIZE", None),
)
# An MPI launcher's name of its run, the same in all its processes.
_MPI_RUNS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal():
        raise InvalidError(f"{name}={text!r} is not a number")
    return int(text)


def _ranks(environ: Mapping[str, str], distributed: Any) -> tuple[int, int, str]:
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size(), "torch.distributed"
    for name, rank, world, besides in _LAUNCHERS:
        if rank in environ and world in environ and (besides is None or besides in environ):
            return _number(environ, rank), _number(environ, world), name
    return 0, 1, "no launcher"


def _run(environ: Mapping[str, str]) -> Optional[str]:
    """What names the run in all of its processes, and in no other's."""
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" in environ:
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    if "MASTER_ADDR" in environ:
        run = environ.get("TORCHELASTIC_RUN_ID", "run")
        return f"{run}-{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    for name in _MPI_RUNS:
        if environ.get(name):
            return f"mpi-{environ[name]}"
    return None


def _job_name(text: str) -> str:
    """As a job's name may be written: some characters only, and not too long."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.:") else "-" for c in text)
    return name if len(name) <= 100 else f"{name[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def identify(environ: Mapping[str, str], rank: Optional[int] = None, world_size: Optional[int] = None,
             replicas: int = 1, job: Optional[str] = None, distributed: Any = None, suffix: str = "") -> Launch:
    """This process's place. `distributed`: torch.distributed, initialised, or None. `suffix` is added to a name that
    the launcher gave: one process may have several Loaders.

    Raises InvalidError: only one of rank and world_size is given, a rank outside its world, a world that replicas do
    not divide, several processes without anything that names their job.
    """
    if (rank is None) != (world_size is None):
        raise InvalidError("rank and world_size go together: give both, or none to take the launcher's")
    if rank is not None and world_size is not None:
        source = "arguments"
    else:
        rank, world_size, source = _ranks(environ, distributed)
    if replicas < 1 or world_size < 1:
        raise InvalidError(f"world_size={world_size} ({source}), replicas={replicas}: at least one each")
    if not 0 <= rank < world_size:
        raise InvalidError(f"rank {rank} of {world_size} ({source}): must be 0 to {world_size - 1}")
    if world_size % replicas:
        raise InvalidError(f"world size {world_size} is no multiple of replicas={replicas}")
    name = job
    if name is None and world_size > 1:
        name = _run(environ)
        if name is None:
            raise InvalidError(f"{world_size} processes ({source}), and nothing names the job that they are: give job=")
        name = _job_name(name + suffix)
    replica = rank % replicas
    if name is not None and replica:
        name += f".replica{replica}"
    return Launch(rank // replicas, world_size // replicas, replica, name, source)
