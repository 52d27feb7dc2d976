# What needs cuda.h or a GPU: attnd-variant, libattnd-cuda, tests/gpu, and the bundle that is built where
# nvcc is and run where the GPU is.
$(CUDA_SOURCES_H): $(MODULE_SOURCES)
	@mkdir -p $(@D)
	@printf '#define ATTND_SOURCES "%s"\n' $(MODULE_NAME) >$@

# Beside the programs, with the sources that it compiles.
VARIANT_PROGRAM := $(BUILD)/attnd-variant
VARIANT_SOURCES := $(BUILD)/share/attnd/kernels
$(VARIANT_PROGRAM): persistent/cuda/worker/attnd-variant.in $(MODULE_SOURCES) VERSION
	@rm -rf $(VARIANT_SOURCES)
	@mkdir -p $(VARIANT_SOURCES)
	@cp --parents -t $(VARIANT_SOURCES) $(MODULE_SOURCES)
	@sed -e 's:@FLAGS@:$(NVFLAGS_KERNEL):' \
	  -e 's:@PORTABLE_FLAGS@:$(NVFLAGS_PORTABLE):' -e "s:@SOURCES@:$(MODULE_NAME):" \
	  -e 's:@VERSION@:$(VERSION):' $< >$@.new
	@chmod 755 $@.new
	@mv $@.new $@
all: $(VARIANT_PROGRAM)

CUDA_H := $(firstword $(wildcard $(NVCC_FOLDER)../include/cuda.h /usr/local/cuda/include/cuda.h \
            /usr/include/cuda.h))

ifneq ($(CUDA_H),)
LIBATTND_CUDA := $(BUILD)/libattnd-cuda.a
# The toolkit's stand-in for the driver's library, which says what the real one will export.
LIBCUDA := $(firstword $(wildcard $(dir $(CUDA_H))../lib64/stubs/libcuda.so \
             $(dir $(CUDA_H))../targets/x86_64-linux/lib/stubs/libcuda.so \
             /usr/lib/x86_64-linux-gnu/stubs/libcuda.so))
LIBATTND_CUDA_SO := $(if $(LIBCUDA),$(BUILD)/libattnd-cuda.so.0)
GPU_EXAMPLES := $(if $(LIBCUDA),$(BUILD)/examples/graph)
GPU_TESTS := $(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(wildcard tests/gpu/*.c))
GPU_SUPPORT := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/gpu/support/*.c))
CUDA_CPPFLAGS := -isystem $(dir $(CUDA_H))

$(BUILD)/obj/client/cuda/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/client/examples/graph.o: CPPFLAGS += -Iclient/cuda $(CUDA_CPPFLAGS)
$(BUILD)/obj/tests/gpu/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/bench/gpu/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/bench/mixed/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)

all: $(LIBATTND_CUDA) $(LIBATTND_CUDA_SO) $(GPU_EXAMPLES)
LIBATTND_CUDA_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard client/cuda/*.c))
$(LIBATTND_CUDA): $(LIBATTND_CUDA_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libattnd-cuda.so.0: $(LIBATTND_CUDA_OBJ) $(LIBATTND_SO) client/libattnd.map
	$(LINK_SO) $(LIBCUDA)

# It calls the driver itself, as an engine does: it starts where the driver's library is.
$(BUILD)/examples/graph: $(BUILD)/obj/client/examples/graph.o $(LIBATTND_CUDA) $(LIBATTND)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LIBCUDA) -lm

# The driver's calls come from tests/gpu/support/driver.c, so that they start where there is none.
# (Static: a pattern rule would be passed over while an object of the support is not there yet.)
$(GPU_TESTS): $(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(GPU_SUPPORT) $(LIBSUPPORT) \
                                    $(LIBATTND_CUDA) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(CUDALIBS) -lcmocka -ldl -lm

ifeq ($(CUDA),1)
# For test_gpu_modules, beside it: a worker with one kernel, and the file of another one. The worker
# is linked of what there is, but for the table of kernels.
GPU_MODULES := $(BUILD)/tests/gpu/modules
GPU_MODULES_INC := $(BUILD)/gen/one_kernel/persistent/cuda/host/variants.inc
GPU_MODULES_LAUNCH := $(BUILD)/obj/tests/gpu/modules/launch.o
$(GPU_MODULES_INC):
	@mkdir -p $(@D)
	@echo 'ATTND_VARIANT(128,fp16,plain)' >$@
$(GPU_MODULES_LAUNCH): persistent/cuda/host/launch.cu $(GPU_MODULES_INC)
	$(call say,$@)
	@mkdir -p $(@D)
	$(NVCC) -I$(BUILD)/gen/one_kernel $(NVFLAGS) $(if $(CRASH_POINTS),-DATTND_CRASH_POINTS) \
	  -MMD -MP -c $< -o $@
# The table first: the archive's is then not asked for, nor are the kernels that it names.
$(GPU_MODULES)/attnd-worker: $(BUILD)/obj/service/worker/main_worker.o $(GPU_MODULES_LAUNCH) \
                             $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(CUDALIBS) -lm
# In a folder of its own first: attnd-variant wants one that nobody else may write to.
$(GPU_MODULES)/.made: $(VARIANT_PROGRAM)
	$(call say,$@)
	@mkdir -p $(@D)
	@rm -f $(@D)/*.cubin
	@made=$$(realpath $$(mktemp -d)); trap "rm -rf $$made" EXIT; \
	 NVCC='$(NVCC)' $< --modules $$made 64_fp16_plain && mv $$made/*.cubin $(@D)
	@touch $@
$(BUILD)/tests/gpu/test_gpu_modules: | $(GPU_MODULES)/attnd-worker $(GPU_MODULES)/.made
endif

$(BUILD)/bench/gpu: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard bench/gpu/*.c)) \
                    $(BUILD)/obj/tests/gpu/support/driver.o \
                    $(LIBMEASURE) $(LIBATTND_CUDA) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(CUDALIBS) -ldl -lm
all: $(BUILD)/bench/gpu

MIXED := $(BUILD)/bench/pod $(BUILD)/bench/cascade
$(MIXED): $(BUILD)/bench/%: $(BUILD)/obj/bench/mixed/%.o $(BUILD)/obj/bench/mixed/batch.o \
          $(BUILD)/obj/bench/gpu/engine.o $(BUILD)/obj/tests/gpu/support/driver.o \
          $(LIBMEASURE) $(LIBATTND_CUDA) $(LIBCORE)
	$(call say,$@)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(LDLIBS_JSON) $(CUDALIBS) -ldl -lm
all: $(MIXED)
endif

# FLASHINFER=dir: the folder of FlashInfer's headers (flashinfer/data of its Python package), to
# measure its kernels beside ours; without it the program has the ceilings only.
FLASHINFER ?=
FLASHINFER_FLAGS := $(if $(FLASHINFER),-w -DATTND_FLASHINFER $(addprefix -I$(FLASHINFER)/,include \
                      cccl/libcudacxx/include cccl/cub cccl/thrust cutlass/include))
$(BUILD)/bench/peer_flashinfer: bench/gpu/peer_flashinfer.cu bench/free_device.cuh bench/must.cuh
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I. $(FLASHINFER_FLAGS) $< -o $@

# What engines of bench/engines have between the QKV product and attention.
ROTATE := $(BUILD)/bench/engines/rotate.cubin
$(ROTATE): bench/engines/rotate.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -arch=sm_90a -cubin $< -o $@

.PHONY: gpu-bundle gpu-bundle-files gpu-check gpu-bench
GPU_BUILD ?= $(BUILD)/cuda
GPU_BUNDLE := $(BUILD)/gpu-bundle

# Says and installs first what it needs here. On the GPU's machine nothing but glibc and the driver has
# to be there: all other libraries are linked in, and cmocka, which has no static one, comes along.
# `commit` says of what the figures will be.
gpu-bundle:
	@command -v '$(lastword $(NVCC))' >/dev/null || \
	  { echo 'gpu-bundle: there is no nvcc, which is not among Debian'"'"'s packages' >&2; exit 1; }
	@.ci/deps.sh bundle
	@$(BUILD_SAYING) 'build of the bundle for a GPU' -j$(shell nproc) BUILD=$(GPU_BUILD) CUDA=1 GPU_BUNDLE=$(GPU_BUNDLE) \
	  LDLIBS_PB=-l:libprotobuf-c.a LDLIBS_DAEMON='-l:liburing.a -l:libinih.a' \
	  LDLIBS_JSON=-l:libjansson.a LDLIBS_SCREEN='-l:libncursesw.a -l:libtinfo.a' \
	  gpu-bundle-files

# What ptxas encodes wrongly (COMPILER.md) must not be in a kernel. Asked where the toolkit can say.
# (The plain kernels for latents are the varied ones.)
CUOBJDUMP := $(firstword $(wildcard $(NVCC_FOLDER)cuobjdump) $(shell command -v cuobjdump))
KERNELS_ENCODED := $(if $(CUOBJDUMP),$(BUILD)/.kernels-encoded)
$(BUILD)/.kernels-encoded: $(filter-out %/576_fp16_plain.o %/576_bf16_plain.o,$(CUDA_VARIANT_OBJ)) \
                           $(filter-out %/engine.fatbin,$(PORTABLE_FILES))
	@for object in $^; do \
	  sass=$$($(CUOBJDUMP) -sass "$$object") || exit 1; \
	  case $$sass in \
	  *LDGSTS*+UR*) bad=$$(printf '%s\n' "$$sass" | grep -c 'LDGSTS.*+UR') ;; \
	  *LDGSTS*) bad=0 ;; \
	  *) echo "$$object: cuobjdump shows no copy to shared memory" >&2; exit 1 ;; \
	  esac; \
	  [ "$$bad" = 0 ] || \
	    { echo "$$object: $$bad LDGSTS to a sum with a uniform register" >&2; exit 1; }; done
	@touch $@
ifeq ($(CUDA),1)
all: $(KERNELS_ENCODED)
endif

gpu-bundle-files: $(KERNELS_ENCODED) $(KERNEL_FILES) $(PORTABLE_FILES) $(LIBATTND_SO) $(LIBATTND_CUDA_SO) $(PROGRAMS) $(E2E) $(GPU_TESTS) \
                  $(BUILD)/bench/attnd-replay $(BUILD)/bench/gpu $(BUILD)/bench/plan \
                  $(BUILD)/bench/host_cache $(MIXED) $(BUILD)/bench/gpu_drain \
                  $(BUILD)/bench/peer_flashinfer $(BUILD)/bench/check $(ROTATE) \
                  $(BUILD)/tests/long/long_random $(EXAMPLES) $(GPU_EXAMPLES)
	@rm -rf $(GPU_BUNDLE)
	@install -D -s -t $(GPU_BUNDLE) $(PROGRAMS)
	@install -D -m644 -t $(GPU_BUNDLE)/kernels $(KERNEL_FILES)
	@$(if $(PORTABLE),install -D -m644 -t $(GPU_BUNDLE)/kernels/portable $(PORTABLE_FILES))
	@install -D -s -t $(GPU_BUNDLE)/bench $(BUILD)/bench/attnd-replay $(BUILD)/bench/gpu \
	  $(BUILD)/bench/plan $(BUILD)/bench/host_cache $(MIXED) $(BUILD)/bench/gpu_drain \
	  $(BUILD)/bench/peer_flashinfer $(BUILD)/bench/check
	@install -D -s -t $(GPU_BUNDLE)/tests/long $(BUILD)/tests/long/long_random
	@install -D -s -t $(GPU_BUNDLE)/examples $(EXAMPLES) $(GPU_EXAMPLES)
	@install -D -s -t $(GPU_BUNDLE)/tests/e2e $(E2E)
	@install -D -s -t $(GPU_BUNDLE)/tests/gpu $(GPU_TESTS)
	@install -D -s -t $(GPU_BUNDLE)/tests/gpu/modules $(GPU_MODULES)/attnd-worker
	@install -D -m644 -t $(GPU_BUNDLE)/tests/gpu/modules $(GPU_MODULES)/*.cubin
	@install -D -t $(GPU_BUNDLE)/lib $$($(CC) -print-file-name=libcmocka.so.0) \
	  $(LIBATTND_SO) $(LIBATTND_CUDA_SO)
	@install -D -t $(GPU_BUNDLE)/tests/gpu tests/gpu/test_gpu_torch.py
	@install -D -t $(GPU_BUNDLE)/tests tests/run
	@install -D -m644 -t $(GPU_BUNDLE)/bench/traces bench/traces/*
	@install -D -t $(GPU_BUNDLE)/bench bench/gpu/peers.py bench/gpu/identity.py
	@install -D -t $(GPU_BUNDLE)/bench/mixed bench/mixed/peers.py bench/mixed/chart.py
	@install -D -t $(GPU_BUNDLE)/bench/engines bench/engines/run bench/engines/*.py $(ROTATE)
	@install -D -t $(GPU_BUNDLE)/bench/shapes bench/shapes/run bench/shapes/*.py
	@install -D -t $(GPU_BUNDLE)/bench/goodput bench/goodput/run bench/goodput/*.py
	@install -D -t $(GPU_BUNDLE)/bench bench/python.py
	@install -D -m644 -t $(GPU_BUNDLE)/client/python/attnd client/python/attnd/*.py
	@install -D -m644 -t $(GPU_BUNDLE)/client/python/tests client/python/tests/*.py
	@install -D -m644 -t $(GPU_BUNDLE)/client/python/examples client/python/examples/*.py
	@install -D -t $(GPU_BUNDLE) tests/gpu/check tests/gpu/gpu-idle tests/gpu/with-mps bench/gpu/measure \
	  bench/gpu/measure-python bench/gpu/profile
	@echo "$$(git rev-parse HEAD)$$(git status --porcelain -- . ':!bench/results' ':!*.md' | sed -n '1s/.*/+/p')" \
	  > $(GPU_BUNDLE)/commit
	@du -sh $(GPU_BUNDLE)

# Where nvcc and GPU are on one machine; else carry the bundle there and run its `check` or `measure`.
gpu-check: gpu-bundle
	@$(GPU_BUNDLE)/check
gpu-bench: gpu-bundle
	@$(GPU_BUNDLE)/measure $(BENCH_RESULTS)
