# The CUDA backend, compiled wherever there is an nvcc (CUDA=0 leaves it out). Sanitizer builds use
# host/cuda_none.c: the host compilers' runtimes know nothing of the driver.
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
# Where it is; it may stand behind a launcher (NVCC="ccache nvcc").
NVCC_FOLDER := $(if $(NVCC),$(dir $(shell command -v $(lastword $(NVCC)))))
CUDA ?= $(if $(NVCC),$(if $(SANITIZE),0,1),0)

NVFLAGS_KERNEL := -std=c++17 -O3 -lineinfo -gencode=arch=compute_90a,code=sm_90a
comma := ,
# Kernels of every GPU from sm_80 on: code for 8.x, and PTX for the rest.
NVFLAGS_PORTABLE := -std=c++17 -O3 -gencode=arch=compute_80$(comma)code=[sm_80$(comma)compute_80]
# What device code is compiled for: 90a, Hopper, in any case. With 80 every GPU from that on has
# kernels, in files of their own: code for 8.x, and PTX, of which the driver makes code for others
# when they are first loaded. With more of them (100, 120) these have code from the beginning.
CUDA_ARCHS ?= 90a
CUDA_OTHERS := $(filter-out 90a,$(CUDA_ARCHS))
NVFLAGS_OTHERS := $(foreach arch,$(CUDA_OTHERS),-gencode=arch=compute_$(arch),code=sm_$(arch)) \
                  $(if $(filter 80,$(CUDA_OTHERS)),-gencode=arch=compute_80$(comma)code=compute_80)
# What a module is made of, and a name for just that: it belongs to workers of these sources.
MODULE_SOURCES := persistent/cuda/worker/variant.cu $(wildcard persistent/cuda/*/*.cuh) \
                  persistent/position.h persistent/visible.h $(wildcard schemas/*.h schemas/*.def)
MODULE_NAME = $$(cat $(MODULE_SOURCES) | sha256sum | cut -c1-16)
CUDA_SOURCES_H := $(BUILD)/gen/persistent/cuda/host/sources.h

ifeq ($(CUDA),1)
# The variants of the worker kernel, DIM_TYPE_POLICY: an object each, and a row each of a table that
# is made by including variants.inc (host/launch.cu). Fewer may be named on the command line, of 576
# plain and varied ones together; attnd-variant makes the others as modules (host/MODULES.md).
CUDA_VARIANTS ?= $(foreach policy,plain varied fp8,$(foreach dim,64 128 256 576, \
                   $(foreach type,fp16 bf16,$(dim)_$(type)_$(policy)))) \
                 $(foreach policy,plain varied,192_fp16_$(policy) 192_bf16_$(policy))
CUDA_VARIANTS_INC := $(BUILD)/gen/persistent/cuda/host/variants.inc

NVFLAGS := $(NVFLAGS_KERNEL) -I. -I$(BUILD)/gen -Xcompiler -Wall,-Wextra -Xptxas -warn-spills
CUDA_VARIANT_OBJ := $(CUDA_VARIANTS:%=$(BUILD)/obj/persistent/cuda/worker/variant/%.o)
CUDAOBJ := $(patsubst %.cu,$(BUILD)/obj/%.o, \
             $(filter-out %/variant.cu,$(wildcard persistent/cuda/*/*.cu))) $(CUDA_VARIANT_OBJ)
CUDALIBS := -L$(NVCC_FOLDER)../lib64 -lcudart_static -ldl -lrt -lstdc++
PERSISTENT := $(filter-out %/cuda_none.c,$(PERSISTENT))

# Made again where it would be another.
.PHONY: FORCE
$(CUDA_VARIANTS_INC): FORCE
	@mkdir -p $(@D)
	@printf 'ATTND_VARIANT(%s)\n' $(subst _,$(comma),$(CUDA_VARIANTS)) >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD)/obj/persistent/cuda/host/modules.o: $(CUDA_SOURCES_H)
$(BUILD)/obj/persistent/cuda/host/%.o: NVFLAGS += $(NVFLAGS_OTHERS)

$(BUILD)/obj/%.o: %.cu | $(CUDA_VARIANTS_INC)
	$(call say,$<)
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) $(if $(CRASH_POINTS),-DATTND_CRASH_POINTS) -MMD -MP -c $< -o $@

# Of variant/DIM_TYPE_POLICY.o: 1, the head dimension; 2, the element type; 3, the policy.
variant_part = $(word $(1),$(subst _, ,$(basename $(@F))))
$(CUDA_VARIANT_OBJ): persistent/cuda/worker/variant.cu
	$(call say,$< $(basename $(@F)))
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -DATTND_VARIANT_DIM=$(call variant_part,1) \
	  -DATTND_VARIANT_TYPE=$(call variant_part,2) \
	  -DATTND_VARIANT_POLICY=$(call variant_part,3) -MMD -MP -c $< -o $@

# What engines are given that execute their own runs: the device code of the objects that the worker
# is made of, so that the two cannot disagree; beside the worker program (KernelFile in attnd.proto).
KERNEL_FILES := $(CUDA_VARIANTS:%=$(BUILD)/kernels/%.fatbin) $(BUILD)/kernels/engine.fatbin
KERNEL_FILES := $(filter-out %/576_fp16_plain.fatbin %/576_bf16_plain.fatbin,$(KERNEL_FILES))
$(BUILD)/kernels/engine.fatbin: $(BUILD)/obj/persistent/cuda/engine/engine.o
$(filter-out %/engine.fatbin,$(KERNEL_FILES)): $(BUILD)/kernels/%.fatbin: \
    $(BUILD)/obj/persistent/cuda/worker/variant/%.o
$(KERNEL_FILES):
	@mkdir -p $(@D)
	objcopy -O binary --only-section=.nv_fatbin $< $@
all: $(KERNEL_FILES)

# The kernels of other GPUs: workers load them, and engines are given the same (host/portable.cu).
PORTABLE := $(if $(CUDA_OTHERS),$(BUILD)/kernels/portable)
PORTABLE_VARIANTS ?= $(filter-out 576_fp16_plain 576_bf16_plain,$(CUDA_VARIANTS))
PORTABLE_FILES := $(if $(PORTABLE),$(PORTABLE_VARIANTS:%=$(PORTABLE)/%.fatbin) $(PORTABLE)/engine.fatbin)
NVCC_PORTABLE = $(NVCC) -std=c++17 -O3 $(NVFLAGS_OTHERS) -I. -fatbin
$(BUILD)/kernels/portable/engine.fatbin: persistent/cuda/engine/engine.cu $(MODULE_SOURCES) \
    $(wildcard persistent/*.h persistent/plan/*.h)
	$(call say,$<)
	@mkdir -p $(@D)
	$(NVCC_PORTABLE) -o $@ $<
$(filter-out %/engine.fatbin,$(PORTABLE_FILES)): $(MODULE_SOURCES)
	$(call say,$< $(basename $(@F)) $(CUDA_OTHERS))
	@mkdir -p $(@D)
	$(NVCC_PORTABLE) -DATTND_MODULE -DATTND_VARIANT_DIM=$(call variant_part,1) \
	  -DATTND_VARIANT_TYPE=$(call variant_part,2) \
	  -DATTND_VARIANT_POLICY=$(call variant_part,3) -o $@ $<
all: $(PORTABLE_FILES)

# Not in BENCH: it runs where the GPU is.
$(BUILD)/bench/gpu_%: $(BUILD)/obj/bench/gpu_%.o $(BUILD)/libcore.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(CUDALIBS) -lm
endif
