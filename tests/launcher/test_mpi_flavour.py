"""Version texts as the MPIs print them."""

import pytest

from hvd_trainer.mpi_flavour import parse


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to a place", "Open MPI", "5.0.11"),
        ("mpirun (Open MPI) 4.1.4", "Open MPI", "4.1.4"),
        ("Open MPI v5.0.11, package: Open MPI x Distribution, ident: 5.0.11", "Open MPI", "5.0.11"),
        (
            "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: x",
            "MPICH",
            "5.0.2",
        ),
        ("MPICH Version:      4.2.3\nMPICH Release date: x", "MPICH", "4.2.3"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307", "Intel MPI", "2021.9"),
        ("mpirun (IBM Spectrum MPI) 10.3.1.3rtm0", "Spectrum MPI", "10.3.1.3rtm0"),
        ("srun: something else", "", ""),
        ("", "", ""),
    ],
)
def test_parse(text, name, version):
    assert parse(text) == (name, version)


def test_unknown_reads_well():
    assert str(parse("")) == "unknown MPI" and str(parse("mpirun (Open MPI) 5.0.11")) == "Open MPI 5.0.11"
