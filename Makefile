# Everything happens in .venv; no root is needed. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

# The image, and what it is built on; where no image registry is reached: make base-image, then
# make image BASE_IMAGE=localhost/python-base:3.11-bookworm
IMAGE ?= localhost/elastic:dev
BASE_IMAGE ?= docker.io/library/python:3.11-slim-bookworm
STAND_INS := localhost/stand-ins:dev
COMPOSE = docker/engine.sh $(abspath $(VENV)/bin/podman-compose) -f deploy/compose/compose.yaml
NODE ?= 2
TOOLS := build/tools

.DEFAULT_GOAL := help
.PHONY: help setup test test-all transcripts tables pictures demo bench-recovery bench-rendezvous \
  bench-checkpoint bench-data bench-exact bench-overhead bench-goodput lint types clean \
  base-image image stand-ins lock sbom image-test up kill down compose-test slurm-test kube-test manifests certificates

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## make .venv and install what the project needs (once, and when the pins change)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Python 3.11 or newer is needed; found: $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "make: Python's venv module is needed (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "setting up $(VENV) (minutes the first time, since torch is large)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

test: setup  ## run all tests, lint and types included (ARGS: more arguments for pytest)
	@$(PY) -m pytest $(ARGS)

test-all: setup  ## run every test, the long ones too, and write tests/RESULTS.md
	@$(PY) -m pytest -m "" -p tests.harness.results --results=tests/RESULTS.md $(ARGS)

transcripts: setup  ## write the verdicts of tests/testdata/rendezvous anew; read the difference
	@$(PY) -m tests.harness.transcripts --rewrite

tables: setup  ## put the generated tables of settings and metrics into docs/
	@$(PY) -m tests.harness.tables

pictures: setup  ## draw the pictures of docs/ anew, from a real run (needs chromium and prometheus)
	@$(PY) -m tests.harness.pictures

demo: setup  ## train on 3 nodes, kill one, add one; ends with an account of it
	@$(PY) -m elastic demo

bench-recovery: setup  ## seconds from a fault to the next step, beside stock torchrun in the same run
	@$(PY) -m tests.bench.recovery

bench-checkpoint: setup  ## what a save costs and how long a restore takes, beside the peers and the machine's limits
	@$(PY) -m tests.bench.checkpoint

bench-rendezvous: setup  ## seconds until thousands of simulated agents agree, beside torch's own rendezvous
	@$(PY) -m tests.bench.rendezvous

bench-data: setup  ## samples used twice and never through a change of the world size, ours and others', by the audit
	@$(PY) -m tests.bench.data_order

bench-exact: setup  ## the bits at each world size, and what numerics: exact costs beside a plain sum and DDP
	@$(PY) -m tests.bench.exact

bench-overhead: setup  ## what the whole system costs a step, beside a bare DDP loop on the same model
	@$(PY) -m tests.bench.overhead

bench-goodput: setup  ## what is left of ten minutes in which workers, nodes and etcd fail one after the other
	@$(PY) -m tests.bench.goodput

image: setup  ## build the image that all containers run (IMAGE, BASE_IMAGE)
	@PYTHON=$(PY) docker/image.sh $(IMAGE) $(BASE_IMAGE)

base-image:  ## make a base for it from Debian's packages, where no image registry is reached
	@docker/base.sh localhost/python-base:3.11-bookworm

stand-ins:  ## make an image of Debian's etcd, Prometheus and Alertmanager, where no image registry is reached
	@docker/stand-ins.sh $(STAND_INS)

lock: $(TOOLS)/.installed  ## write docker/requirements.lock anew, with hashes, from what constraints.txt pins
	@$(TOOLS)/bin/pip-compile --quiet --allow-unsafe --generate-hashes --strip-extras --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate --output-file docker/requirements.lock docker/requirements.in

sbom: $(TOOLS)/.installed  ## list what the image holds as a CycloneDX bill of materials, in build/sbom.json
	@$(TOOLS)/bin/cyclonedx-py requirements docker/requirements.lock --output-file build/sbom.json

$(TOOLS)/.installed: # apart: what these want would get into the way of what is tested
	@rm -rf $(TOOLS) && $(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/pip install --quiet --disable-pip-version-check pip-tools==7.6.2 cyclonedx-bom==7.5.0
	@touch $@

image-test: setup  ## run the image: without rights, as a random user, with its root read-only
	@$(PY) -m pytest -m "" tests/integration/test_image_run.py $(ARGS)

up: setup  ## four nodes, etcd, Prometheus, Alertmanager and Grafana in containers (SERVICES: only these)
	@$(COMPOSE) up -d $(SERVICES)

kill: setup  ## kill one node of them: make kill NODE=2; make up brings it back
	@$(COMPOSE) kill -s KILL node$(NODE)

down: setup  ## end them all, and delete their checkpoints
	@$(COMPOSE) down -v

compose-test: setup  ## the same in a test: a node killed, one cut off, one frozen, and all counted
	@$(PY) -m pytest -m "" tests/integration/test_compose.py $(ARGS)

slurm-test: setup  ## the sbatch script on a Slurm of four daemons: preempted, warned, queued again
	@$(PY) -m pytest -m "" tests/integration/test_slurm.py $(ARGS)

kube-test: setup  ## the pods of the manifests by `podman play kube`
	@$(PY) -m pytest -m "" tests/integration/test_play_kube.py $(ARGS)

manifests: setup  ## write all overlays for Kubernetes, the alerts and the dashboard to build/manifests
	@$(PY) -m tests.harness.manifests build/manifests

certificates:  ## print the secrets for etcd in Kubernetes, made by openssl
	@deploy/kubernetes/certificates/make.sh

lint: setup  ## check style
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: setup  ## check types
	@$(PY) -m mypy

clean:  ## remove .venv and caches; never what you trained (output/)
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
