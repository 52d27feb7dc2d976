# The CUDA backend, compiled wherever there is an nvcc (CUDA=0 leaves it out). Sanitizer builds use
# cuda_none.c: the host compilers' runtimes know nothing of the driver.
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),$(if $(SANITIZE),0,1),0)

ifeq ($(CUDA),1)
NVFLAGS := -std=c++17 -O3 -lineinfo -gencode=arch=compute_90a,code=sm_90a -I. \
           -Xcompiler -Wall,-Wextra -Xptxas -warn-spills
CUDAOBJ := $(patsubst %.cu,$(BUILD)/obj/%.o,$(wildcard persistent/cuda/*.cu))
CUDALIBS := -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt -lstdc++
PERSISTENT := $(filter-out persistent/cuda/cuda_none.c,$(PERSISTENT))

$(BUILD)/obj/%.o: %.cu
	$(call say,$<)
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -MMD -MP -c $< -o $@

# Not in BENCH: it runs where the GPU is.
$(BUILD)/bench/gpu_%: $(BUILD)/obj/bench/gpu_%.o $(BUILD)/libcore.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(CUDALIBS) -lm
endif
