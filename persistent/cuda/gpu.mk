# What needs cuda.h or a GPU: libattnd-cuda, tests/gpu, and the bundle that is built where nvcc is and
# run where the GPU is.
CUDA_H := $(firstword $(wildcard $(dir $(NVCC))../include/cuda.h /usr/local/cuda/include/cuda.h \
            /usr/include/cuda.h))

ifneq ($(CUDA_H),)
LIBATTND_CUDA := $(BUILD)/libattnd-cuda.a
GPU_TESTS := $(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(wildcard tests/gpu/*.c))
GPU_SUPPORT := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/gpu/support/*.c))
CUDA_CPPFLAGS := -isystem $(dir $(CUDA_H))

$(BUILD)/obj/client/cuda/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/tests/gpu/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/bench/gpu/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)

all: $(LIBATTND_CUDA)
$(LIBATTND_CUDA): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard client/cuda/*.c))
	@rm -f $@
	ar rcs $@ $^

# The driver's calls come from tests/gpu/support/driver.c, so that they start where there is none.
# (Static: a pattern rule would be passed over while an object of the support is not there yet.)
$(GPU_TESTS): $(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(GPU_SUPPORT) $(LIBSUPPORT) \
                                    $(LIBATTND_CUDA) $(LIBCORE)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(CUDALIBS) -lcmocka -ldl -lm

$(BUILD)/bench/gpu: $(BUILD)/obj/bench/gpu/main.o $(BUILD)/obj/tests/gpu/support/driver.o \
                    $(LIBMEASURE) $(LIBATTND_CUDA) $(LIBCORE)
	@mkdir -p $(@D)
	$(LINK) $(LDLIBS_PB) $(LDLIBS_DAEMON) $(CUDALIBS) -ldl -lm
all: $(BUILD)/bench/gpu
endif

.PHONY: gpu-bundle gpu-bundle-files gpu-check
GPU_BUILD ?= $(BUILD)/cuda
GPU_BUNDLE := $(BUILD)/gpu-bundle

# Nothing but glibc and the driver has to be there: liburing and protobuf-c are linked in, cmocka has
# no static library and comes along.
gpu-bundle:
	@$(MAKE) --no-print-directory -s BUILD=$(GPU_BUILD) CUDA=1 GPU_BUNDLE=$(GPU_BUNDLE) \
	  LDLIBS_PB=-l:libprotobuf-c.a LDLIBS_DAEMON=-l:liburing.a gpu-bundle-files

gpu-bundle-files: $(PROGRAMS) $(E2E) $(GPU_TESTS) $(BUILD)/bench/attnd-replay $(BUILD)/bench/gpu \
                  $(EXAMPLES)
	@rm -rf $(GPU_BUNDLE)
	@install -D -s -t $(GPU_BUNDLE) $(PROGRAMS)
	@install -D -s -t $(GPU_BUNDLE)/bench $(BUILD)/bench/attnd-replay $(BUILD)/bench/gpu
	@install -D -s -t $(GPU_BUNDLE)/examples $(EXAMPLES)
	@install -D -s -t $(GPU_BUNDLE)/tests/e2e $(E2E)
	@install -D -s -t $(GPU_BUNDLE)/tests/gpu $(GPU_TESTS)
	@install -D -t $(GPU_BUNDLE)/lib $$($(CC) -print-file-name=libcmocka.so.0)
	@install -D -t $(GPU_BUNDLE)/tests tests/run
	@install -D -m644 -t $(GPU_BUNDLE)/bench/traces bench/traces/*
	@install -D -t $(GPU_BUNDLE) tests/gpu/check
	@du -sh $(GPU_BUNDLE)

# Where nvcc and GPU are on one machine; else carry the bundle there and run its `check`.
gpu-check: gpu-bundle
	@$(GPU_BUNDLE)/check
