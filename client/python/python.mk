# The Python package: a wheel of it, and its tests with the frameworks that it works with.
#
# `make check` runs the part of the tests that needs numpy only (tests/python). `make check-python`
# makes a virtual environment from PyPI, installs the wheel and runs all of them: the models, and the
# modules of vLLM and SGLang against these packages.

PYTHON ?= python3
PYVENV := $(BUILD)/python
WHEEL_LIBS := $(LIBATTND_SO) $(LIBATTND_CUDA_SO)

.PHONY: wheel check-python
wheel: $(WHEEL_LIBS) $(PYVENV)/bin/python
	@rm -rf $(BUILD)/wheel $(BUILD)/wheel-source
	@mkdir -p $(BUILD)/wheel-source
	@cp -r client/python/pyproject.toml client/python/setup.py client/python/README.md VERSION \
	  client/python/attnd $(BUILD)/wheel-source
	@ATTND_BUILD=$(abspath $(BUILD)) $(PYVENV)/bin/python -m pip --quiet --disable-pip-version-check \
	  wheel --no-deps --wheel-dir $(BUILD)/wheel $(BUILD)/wheel-source
	@ls $(BUILD)/wheel/*.whl

$(PYVENV)/bin/python:
	@.ci/deps.sh python
	$(PYTHON) -m venv $(PYVENV)

# The bound on what comes from PyPI; each step of it is silent until it ends.
PYPI_S ?= 900
PIP := timeout $(PYPI_S) $(PYVENV)/bin/python -m pip --quiet --disable-pip-version-check
PYTESTS := client/python/tests

$(PYVENV)/installed: $(PYTESTS)/requirements.txt $(PYTESTS)/engines.txt | $(PYVENV)/bin/python
	@echo 'check-python: PyTorch, transformers, vLLM, SGLang and what they import, from PyPI into'
	@echo '  $(PYVENV): 2.5 GB to fetch, 8 GB there; steps end after $(PYPI_S) s if they must'
	$(PIP) install -r $(PYTESTS)/requirements.txt
	$(PIP) install --no-deps -r $(PYTESTS)/engines.txt
	@touch $@

check-python: programs wheel $(PYVENV)/installed
	$(PIP) install --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	@ATTND_TEST_TIMEOUT=600 ATTND_PYTHON=$(abspath $(PYVENV)/bin/python) BUILD=$(BUILD) \
	  ATTND_TEST_NEED='torch transformers sglang vllm' \
	  tests/run tests/python-install tests/python tests/python-models
