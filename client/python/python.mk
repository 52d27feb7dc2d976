# The Python package: a wheel of it, and its tests with the frameworks that it works with.
#
# `make check` runs the part of the tests that needs numpy only (tests/python). `make check-python`
# makes a virtual environment from PyPI, installs the wheel and runs all of them, the models too.

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

check-python: programs wheel
	$(PYVENV)/bin/python -m pip --quiet --disable-pip-version-check install --force-reinstall --no-deps \
	  $(BUILD)/wheel/*.whl
	$(PYVENV)/bin/python -m pip --quiet --disable-pip-version-check install numpy torch transformers
	@ATTND_TEST_TIMEOUT=900 ATTND_PYTHON=$(abspath $(PYVENV)/bin/python) BUILD=$(BUILD) \
	  tests/run tests/python tests/python-models
