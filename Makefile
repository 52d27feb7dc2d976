# attnd - build, check, demonstrate. `make help` lists the targets.
#
#   BUILD=dir        where everything is built (default: build)
#   CC=gcc|clang     compiler
#   SANITIZE=list    e.g. address,undefined or thread
#   WERROR=          empty: warnings are not errors
#   CRASH_POINTS=1   processes can be made to end at steps of the protocols (schemas/crash.h): tests

.DEFAULT_GOAL := all
BUILD ?= build
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
PROTOC_C ?= protoc-c
SANITIZE ?=
CRASH_POINTS ?=
WERROR ?= -Werror
VERSION := $(shell cat VERSION)
VERSION_PARTS := $(subst ., ,$(firstword $(subst -, ,$(VERSION))))
ARCH := $(shell uname -m)

WARN := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wpointer-arith -Wvla $(WERROR)
CPPFLAGS += -I. -I$(BUILD)/gen -D_GNU_SOURCE
ifneq ($(CRASH_POINTS),)
CPPFLAGS += -DATTND_CRASH_POINTS
endif
CFLAGS ?= -O2 -g
# `override`: without it a CFLAGS on the command line, as in test-asan, would drop all that follows,
# the sanitizer included.
override CFLAGS += -std=c11 -fno-strict-aliasing -fno-common -pthread -MMD -MP
LDLIBS_PB := -lprotobuf-c
LDLIBS_DAEMON := -luring -linih
LDLIBS_JSON := -ljansson
# attnd-mover wants headers of UCX, which it opens when it runs, and libcrypto. Without them it is
# left out, and services of other hosts cannot be named.
HAVE_MOVER := $(shell printf '\#include <ucp/api/ucp.h>\n\#include <openssl/hmac.h>\n' | \
                $(CC) -E -xc - >/dev/null 2>&1 && echo 1)
LDLIBS_MOVER := $(if $(HAVE_MOVER),-lcrypto -ldl)
LDLIBS_SCREEN := -lncursesw -ltinfo
override LDFLAGS += -pthread
ifneq ($(SANITIZE),)
override CFLAGS += -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
# It links what is instrumented in a third of the time.
GOLD := $(if $(shell command -v ld.gold),-fuse-ld=gold)
override LDFLAGS += -fsanitize=$(SANITIZE) $(GOLD)
endif

# PROGRESS=1: each recipe says what it makes, for .ci/build.sh to count.
say = $(if $(PROGRESS),@echo '+ $(1)')

# ---- what is built ----

VERSION_H := $(BUILD)/gen/schemas/version.h
PROTOS := attnd peer status
GEN := $(PROTOS:%=$(BUILD)/gen/schemas/%.pb-c.c) $(VERSION_H)
SCHEMAS := $(wildcard schemas/*.c)
IPC := $(wildcard ipc/*.c)
# libattnd needs no event loop.
IPC_CLIENT := $(filter-out ipc/loop%.c ipc/closer.c ipc/array.c ipc/courier.c,$(IPC))
PERSISTENT := $(wildcard persistent/*.c persistent/plan/*.c persistent/cpu/*.c persistent/cuda/*/*.c)
ifneq ($(ARCH),x86_64)
PERSISTENT := $(filter-out %_avx2.c %_avx512.c,$(PERSISTENT))
endif
PERSISTENT := $(wildcard $(PERSISTENT))
include persistent/cuda/cuda.mk
CLIENT := $(wildcard client/*.c)
SERVICE := $(filter-out $(wildcard service/*/main_*.c),$(wildcard service/*/*.c))
ifeq ($(HAVE_MOVER),)
$(if $(MAKELEVEL:0=),,$(info attnd-mover is left out: it wants libucx-dev and libssl-dev))
SERVICE := $(filter-out service/mover/%,$(SERVICE))
endif
MEASURE := $(wildcard bench/support/*.c) \
           $(filter-out bench/replay/main.c,$(wildcard bench/replay/*.c))
# Stubs stand in for what the library defines: they are linked before it, and only where asked for.
SUPPORT := $(filter-out tests/support/stubs/% tests/support/preload/%,$(wildcard tests/support/*/*.c))
DEVICE_STUBBED := tests/unit/service/objects/test_memory_import \
                  tests/unit/service/supervise/test_device_memory
DATA_STUBBED := $(DEVICE_STUBBED) \
                $(addprefix tests/unit/service/daemon/,test_accept test_service) \
                $(basename $(filter-out %/test_data_status.c, \
                  $(wildcard tests/unit/service/rpc/*.c tests/unit/service/session/*.c))) \
                $(addprefix tests/unit/service/objects/,test_lease test_pool test_pool_lives)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
GENOBJ := $(PROTOS:%=$(BUILD)/obj/gen/%.pb-c.o)

LIBATTND := $(BUILD)/libattnd.a
LIBATTND_SO := $(BUILD)/libattnd.so.0
LIBCORE := $(BUILD)/libcore.a
LIBMEASURE := $(BUILD)/libmeasure.a
LIBSUPPORT := $(BUILD)/libsupport.a
PROGRAMS := $(addprefix $(BUILD)/,attnd attnd-worker $(if $(HAVE_MOVER),attnd-mover) attnctl)
# Without the one of a GPU, which persistent/cuda/gpu.mk builds where cuda.h is.
EXAMPLES := $(patsubst client/examples/%.c,$(BUILD)/examples/%, \
              $(filter-out %/graph.c,$(wildcard client/examples/*.c)))
UNIT := $(patsubst %.c,$(BUILD)/%,$(sort $(shell find tests/unit -name 'test_*.c' \
          $(if $(HAVE_MOVER),,-not -path '*/mover/*'))))
E2E := $(patsubst tests/e2e/%.c,$(BUILD)/tests/e2e/%,$(wildcard tests/e2e/*.c))
LONG := $(patsubst tests/long/%.c,$(BUILD)/tests/long/%,$(wildcard tests/long/*.c))
BENCH := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
BENCH += $(BUILD)/bench/attnd-replay

.PHONY: all programs tests tested help
all: $(LIBATTND) $(LIBATTND_SO) $(PROGRAMS) $(EXAMPLES) $(BENCH)
programs: $(PROGRAMS)
tests: $(UNIT) $(E2E)
tested: tests programs $(EXAMPLES) $(BUILD)/bench/attnd-replay

help:
	@echo 'make demo         build, start a private service, replay a trace, verify, summarise'
	@echo 'make check        build, lint, run all tests (no GPU needed; under 15 minutes)'
	@echo 'make check-long   random batches, client deaths, long fuzzing, attackers, calls from Python'
	@echo 'make all          build only; make install PREFIX=/usr/local; make man (wants scdoc)'
	@echo 'make wheel        the Python package; make check-python tests it with models from PyPI'
	@echo 'make lint         formatting, include direction, clang-tidy, cppcheck'
	@echo 'make gpu-bundle   what a machine with a GPU needs to run the tests, in one folder'
	@echo 'make gpu-check    the same, and run them here'
	@echo 'make gpu-bench    figures of the CUDA worker beside its peers, measured here'
	@echo 'make figures      print every record of bench/results as one table'
	@echo 'make bench        measure every figure of this machine (wants it quiet, and a clean checkout)'

# ---- rules ----

.SECONDARY:
.DELETE_ON_ERROR:
$(PROTOS:%=$(BUILD)/gen/schemas/%.pb-c.c) $(PROTOS:%=$(BUILD)/gen/schemas/%.pb-c.h) &: \
    $(PROTOS:%=schemas/%.proto)
	$(call say,$<)
	@mkdir -p $(BUILD)/gen
	$(PROTOC_C) --c_out=$(BUILD)/gen $^

$(VERSION_H): VERSION schemas/version.h.in
	@mkdir -p $(@D)
	@sed -e 's/@VERSION@/$(VERSION)/' -e 's/@MAJOR@/$(word 1,$(VERSION_PARTS))/' \
	  -e 's/@MINOR@/$(word 2,$(VERSION_PARTS))/' -e 's/@PATCH@/$(word 3,$(VERSION_PARTS))/' \
	  schemas/version.h.in > $@

$(GENOBJ): $(BUILD)/obj/gen/%.o: $(BUILD)/gen/schemas/%.c
	$(call say,$<)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -w -c $< -o $@

FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
FLAGS_avx2 := -mavx2 -mfma -mf16c
isa_flags = $(if $(filter %_avx512.c,$<),$(FLAGS_avx512))$(if $(filter %_avx2.c,$<),$(FLAGS_avx2))
# Inner loops are worth what the compiler can do. Instrumented, each takes half a minute at -O1 and
# above, and 8 s at -Og: only those that this processor's worker takes are worth it there.
KERNEL_HERE := $(if $(SANITIZE),$(if $(shell grep -m1 -o avx512vl /proc/cpuinfo),avx512,avx2))
hot_flags = $(if $(filter persistent/cpu/kernel%,$<),-ffp-contract=fast \
              $(if $(filter-out %_$(KERNEL_HERE).c,$(if $(SANITIZE),$<)),-Og,-O3))
# What judges is not under test, and instrumented it would take most of the time of those that are.
JUDGES := tests/support/oracle/% bench/replay/model.c bench/replay/reference.c
judge_flags = $(if $(filter $(JUDGES),$<),$(if $(SANITIZE),-O2 -fno-sanitize=$(SANITIZE)))
# What libattnd.so and libattnd-cuda.so are made of.
pic_flags = $(if $(filter client/% ipc/% schemas/%,$<),-fPIC)

# Examples include what an engine includes: the header by its installed name.
$(BUILD)/obj/client/examples/%.o: CPPFLAGS += -Iclient
$(BUILD)/obj/%.o: %.c | $(GEN)
	$(call say,$<)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(hot_flags) $(judge_flags) $(isa_flags) $(pic_flags) -c $< -o $@

LIBATTND_OBJ := $(call obj,$(CLIENT) $(IPC_CLIENT) $(SCHEMAS)) $(GENOBJ)
$(LIBATTND): $(LIBATTND_OBJ)
	@rm -f $@
	ar rcs $@ $^

# The same for engines that load it, from Python for instance; the map says what they see of it.
LINK_SO = $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,$(notdir $@) \
          -Wl,--version-script=client/libattnd.map $(filter %.o %.0,$^) -o $@
$(LIBATTND_SO): $(LIBATTND_OBJ) client/libattnd.map
	$(LINK_SO) $(LDLIBS_PB)

# Everything but main(): of the programs, of what measures, and of the tests. Only the last wants
# cmocka, which `make` and `make demo` do without.
$(LIBCORE): $(call obj,$(CLIENT) $(IPC) $(PERSISTENT) $(SCHEMAS) $(SERVICE)) $(GENOBJ) $(CUDAOBJ)
$(LIBMEASURE): $(call obj,$(MEASURE))
$(LIBSUPPORT): $(call obj,$(SUPPORT))
$(LIBCORE) $(LIBMEASURE) $(LIBSUPPORT):
	@rm -f $@
	ar rcs $@ $^

LINK = $(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@
$(BUILD)/attnd: $(BUILD)/obj/service/daemon/main_attnd.o
$(BUILD)/attnd-worker: $(BUILD)/obj/service/worker/main_worker.o
$(BUILD)/attnd-mover: $(BUILD)/obj/service/mover/main_mover.o
$(BUILD)/attnd-mover: LDLIBS_OWN := $(LDLIBS_MOVER)
$(BUILD)/attnctl: $(BUILD)/obj/service/ctl/main_attnctl.o
$(BUILD)/attnctl: LDLIBS_OWN := $(LDLIBS_JSON) $(LDLIBS_SCREEN)
$(PROGRAMS): $(LIBCORE)
	$(call say,$@)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_OWN) $(CUDALIBS) -lm
$(BUILD)/examples/%: $(BUILD)/obj/client/examples/%.o $(LIBATTND)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) -lm
$(addprefix $(BUILD)/,$(DATA_STUBBED)): $(call obj,tests/support/stubs/data_stub.c)
$(addprefix $(BUILD)/,$(DEVICE_STUBBED)): $(call obj,tests/support/stubs/device_stub.c)
$(BUILD)/tests/fail_allocation.so: tests/support/preload/fail_allocation.c
	$(call say,$@)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -fPIC -shared $< -o $@
$(BUILD)/tests/long/long_allocations: | $(BUILD)/tests/fail_allocation.so
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(LIBSUPPORT) $(LIBMEASURE) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(LDLIBS_MOVER) $(CUDALIBS) -lcmocka -lm
$(BUILD)/bench/attnd-replay: $(BUILD)/obj/bench/replay/main.o $(LIBMEASURE) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(CUDALIBS) -lm
$(BUILD)/bench/cpu_kernels: $(call obj,tests/support/rigs/cpu_rig.c)
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIBMEASURE) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(CUDALIBS) -lm

include bench/demo.mk
include persistent/cuda/gpu.mk

# ---- checking ----

# `make check` installs what is missing, builds, lints and runs every test; `make check-long` adds
# what takes hours. Sanitizer builds live in folders of their own. gcc builds everything, and again
# for ASan. clang builds all libraries and the tests with threads for TSan; its warnings about
# everything come by clang-tidy, which reads each file with the same flags.
.PHONY: check check-all check-beside check-models check-long lint format
.PHONY: test test-unit test-e2e test-asan test-tsan
check:
	@.ci/deps.sh check
	@$(MAKE) --no-print-directory check-all

# Builds, and says how far it is.
BUILD_SAYING = MAKE='$(MAKE)' .ci/build.sh

# Where there is no GPU nothing executes kernels: those that are compiled have each dimension, each
# type and each policy, though not each of one with each of the others (those of fp8 take 40 s each,
# varied ones 25 s, and the other one of 576 nearly nothing). tests/variant compiles 64_fp16_plain.
# `make check-long` and `make gpu-bundle` compile all of them. Of the code for GPUs other than Hopper
# that is compiled which is no variant's, and tests/variant compiles one of those.
ifeq ($(wildcard /dev/nvidia0),)
check-all: export CUDA_VARIANTS := \
  128_bf16_plain 64_fp16_varied 192_fp16_plain 256_fp16_fp8 576_bf16_plain 576_bf16_varied
check-all: export CUDA_ARCHS := 90a 80
check-all: export PORTABLE_VARIANTS :=
endif
check-all:
	@$(BUILD_SAYING) 'build with gcc, and nvcc where there is one' -j2 BUILD=build CC=gcc all tests
	@echo '== ASan + UBSan, TSan, tests; beside them, with what they leave: lint, fuzzing, models'
	@nice -n 19 $(MAKE) --no-print-directory -s check-beside >$(BUILD)/beside.log 2>&1 & beside=$$!; \
	 trap 'kill $$beside 2>/dev/null' EXIT; status=0; \
	 for stage in test-asan test-tsan test; do \
	   echo "== $$stage"; $(MAKE) --no-print-directory -s $$stage || status=1; done; \
	 echo '== lint, fuzzing, models'; wait $$beside || status=1; cat $(BUILD)/beside.log; exit $$status

# What needs processors and no quiet: one after another, so that the analyser's two processes are all
# that there are.
check-beside:
	@failed=0; for target in lint fuzz fuzz-short check-models; do \
	   $(MAKE) --no-print-directory -s $$target || failed=1; done; exit $$failed

# Of the protocols, by spin.
check-models:
	@tests/models/check

lint: $(GEN)
	@BUILD=$(BUILD) .ci/lint.sh

# After a change of the public headers or of abi.h that is meant: the new references of tests/abi.
.PHONY: abi-update
abi-update:
	@BUILD=$(BUILD) tests/abi/check --update
	@BUILD=$(BUILD) tests/abi/layouts --update

# For .ci/lint.sh.
.PHONY: print-warnings
print-warnings:
	@echo $(WARN)

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

# Two at once, and those that take long first: most wait more than they compute. One after another:
# those with real processes that claim how soon something happens, or who gets how much time; and
# what runs make.
E2E_ALONE := $(filter $(addprefix %/test_e2e_,client_death daemon_death fair hostile poll priority \
               trace trace_file turns),$(E2E))
E2E_LONG := $(addprefix $(BUILD)/tests/e2e/test_e2e_,replay peers_death crash watchdog cascade lanes \
              backpressure contract_random)
E2E_AT_ONCE := $(E2E_LONG) $(filter-out $(E2E_LONG) $(E2E_ALONE),$(E2E))
SCRIPTS_AT_ONCE := tests/python-property tests/python $(addprefix tests/bench_,engines_run goodput \
                     shapes simulate trace engines identity)
SCRIPTS_ALONE := tests/install tests/operators tests/abi/check tests/abi/layouts tests/variant
test: all tests
	@ATTND_TEST_TIMEOUT=150 BUILD=$(BUILD) tests/run -j 2 $(SCRIPTS_AT_ONCE) $(E2E_AT_ONCE) $(UNIT) \
	  -- $(E2E_ALONE) $(SCRIPTS_ALONE)
test-unit: $(UNIT)
	@tests/run -j 2 $(UNIT)
test-e2e: all $(E2E)
	@tests/run -j 2 $(E2E_AT_ONCE) -- $(E2E_ALONE)

# A report names functions and lines, and variables by what the compiler instruments: -g1 has that.
SANITIZE_CFLAGS := -O1 -g1

# Instrumented code is several times slower: more time for a program, and nothing built that no test
# runs. gcc's runtime; leaks are errors.
test-asan:
	@$(BUILD_SAYING) 'build with ASan and UBSan' -j2 BUILD=build/asan SANITIZE=address,undefined \
	  CRASH_POINTS=1 CFLAGS='$(SANITIZE_CFLAGS)' tested
	@ATTND_TEST_TIMEOUT=240 tests/run -j 2 \
	  $(patsubst $(BUILD)/%,build/asan/%,$(E2E_AT_ONCE) $(UNIT) -- $(E2E_ALONE))

# Programs whose threads share memory: both ring ends in one process and one mapping (TSan sees
# nothing across two), the worker's threads, the client's two.
TSAN_TESTS := $(filter %threads %cpu_queue %worker_memory $(BUILD)/tests/unit/client/%,$(UNIT))
# What of the service they link.
TSAN_SERVICE := $(filter $(addprefix service/,args/% base/% worker/% sched/planner.c),$(SERVICE))
test-tsan:
	@$(BUILD_SAYING) 'build with TSan' -j2 BUILD=build/tsan SANITIZE=thread CC=clang \
	  CFLAGS='$(SANITIZE_CFLAGS)' SERVICE='$(TSAN_SERVICE)' MEASURE= \
	  $(patsubst $(BUILD)/%,build/tsan/%,$(TSAN_TESTS))
	@ATTND_TEST_TIMEOUT=240 tests/run -j 2 $(patsubst $(BUILD)/%,build/tsan/%,$(TSAN_TESTS))

check-long: check $(LONG)
	@$(BUILD_SAYING) 'build of all kernels' -j2 all
	@ATTND_ANALYSER_NODES=225000 BUILD=$(BUILD) .ci/lint.sh
	@$(MAKE) --no-print-directory fuzz-long
	@ATTND_PROPERTY_S=1200 ATTND_TEST_TIMEOUT=1500 BUILD=$(BUILD) tests/run tests/python-property
	@for program in $(filter-out %/long_hostile,$(LONG)); do \
	   echo "== $$program"; $$program || exit 1; done
	@$(BUILD_SAYING) 'build the soak with ASan and UBSan' -j2 BUILD=build/asan \
	  SANITIZE=address,undefined CRASH_POINTS=1 CFLAGS='$(SANITIZE_CFLAGS)' build/asan/attnd \
	  build/asan/attnd-worker build/asan/tests/long/long_hostile build/asan/tests/e2e/test_e2e_crash
	build/asan/tests/long/long_hostile
	ATTND_CRASH_COUNTS=8 build/asan/tests/e2e/test_e2e_crash

-include tests/fuzz/fuzz.mk
include client/python/python.mk

include service/dist/install.mk

.PHONY: clean
clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
