/*
 * engine.c - the kernels and the device memory of a session whose runs this engine executes.
 *
 * The kernels are the service's: it hands out the files that its worker was built with. They are
 * loaded when a plan first needs them, which a capture forbids, so that is done in relaxed mode.
 */
#include "client/cuda/engine.h"

#include "schemas/tensor_maps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int attnd_engine_fault(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    int code = result == CUDA_ERROR_OUT_OF_MEMORY ? -ATTND_E_NO_MEMORY : -ATTND_E_DEVICE;
    return attnd_fault_raise(code, ATTND_F_NONE, 0, result, 0);
}

struct engine_block *attnd_engine_alloc(struct attnd_engine *engine, uint64_t size_bytes, int *code)
{
    struct engine_block *block = calloc(1, sizeof(*block));

    if (block == NULL) {
        *code = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
        return NULL;
    }
    CUresult result = cuMemAlloc(&block->address, size_bytes);
    if (result == CUDA_SUCCESS) {
        block->size_bytes = size_bytes;
        block->next = engine->blocks;
        engine->blocks = block;
        result = cuMemsetD8Async(block->address, 0, size_bytes, engine->stream);
    } else {
        free(block);
        block = NULL;
    }
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(engine->stream);
    *code = attnd_engine_fault(result);
    if (*code == 0)
        return block;
    if (block)
        attnd_engine_free(engine, block->address);
    return NULL;
}

void attnd_engine_free(struct attnd_engine *engine, CUdeviceptr address)
{
    for (struct engine_block **link = &engine->blocks; *link; link = &(*link)->next) {
        struct engine_block *block = *link;
        if (block->address != address)
            continue;
        *link = block->next;
        (void)cuMemFree(address);
        free(block);
        return;
    }
}

int attnd_engine_grow(struct attnd_engine *engine, struct engine_block **block, uint64_t bytes)
{
    int rc = 0;

    if (*block && (*block)->size_bytes >= bytes)
        return 0;
    struct engine_block *larger = attnd_engine_alloc(engine, bytes, &rc);
    if (larger)
        *block = larger;
    return rc;
}

void attnd_engine_wait(struct attnd_engine *engine, uint32_t lane)
{
    if (engine->launched[lane])
        (void)cuEventSynchronize(engine->launched[lane]);
}

void attnd_engine_note_launch(struct attnd_engine *engine, uint32_t lane, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (!engine->launched[lane])
        result = cuEventCreate(&engine->launched[lane], CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = cuEventRecord(engine->launched[lane], stream);
    if (result != CUDA_SUCCESS)
        (void)cuStreamSynchronize(stream);
}

int attnd_engine_call(struct attnd_engine *engine, CUfunction function, uint32_t threads,
                      void **arguments)
{
    CUresult result =
        cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, engine->stream, arguments, NULL);

    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(engine->stream);
    return attnd_engine_fault(result);
}

/* ---- kernels ---- */

static int load_file(struct attnd_session *session, uint32_t kernel, CUmodule *module)
{
    uint64_t size_bytes;
    int fd, rc = attnd_kernel_file(session, kernel, &fd, &size_bytes);

    if (rc < 0)
        return rc;
    void *image = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (image == MAP_FAILED)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    rc = attnd_engine_fault(cuModuleLoadData(module, image));
    (void)munmap(image, size_bytes);
    return rc;
}

/* By the engine's own stream: a copy of the default one would end a capture of a stream that is
 * ordered with that. */
static CUresult read_facts(const struct attnd_engine *engine, CUmodule module, const char *name,
                           void *facts, size_t bytes)
{
    CUdeviceptr at;
    size_t there = 0;
    CUresult result = cuModuleGetGlobal(&at, &there, module, name);

    if (result == CUDA_SUCCESS)
        result = there == bytes ? cuMemcpyDtoHAsync(facts, at, bytes, engine->stream)
                                : CUDA_ERROR_INVALID_IMAGE;
    return result == CUDA_SUCCESS ? cuStreamSynchronize(engine->stream) : result;
}

/* The facts have the kernel's own name, which may be that of the varied one. */
static CUresult kernel_facts(const struct attnd_engine *engine, CUmodule module, uint32_t number,
                             struct attnd_kernel_facts *facts)
{
    char kernel[ATTND_KERNEL_NAME_BYTES], name[64];
    CUresult result = CUDA_ERROR_NOT_FOUND;

    for (; number < ATTND_KERNELS && result == CUDA_ERROR_NOT_FOUND;
         number = attnd_kernel_varied(number)) {
        (void)snprintf(name, sizeof(name), "attnd_facts_%s", attnd_kernel_name(number, kernel));
        result = read_facts(engine, module, name, facts, sizeof(*facts));
    }
    return result;
}

static int load_kernel(struct attnd_engine *engine, uint32_t number, struct engine_kernel *kernel)
{
    struct attnd_kernel_facts facts;
    CUmodule module = NULL;
    int rc = load_file(engine->session, number, &module);

    if (rc < 0)
        return rc;
    CUresult result = kernel_facts(engine, module, number, &facts);
    if (result == CUDA_SUCCESS && facts.session_bytes != engine->facts.session_bytes)
        result = CUDA_ERROR_INVALID_IMAGE;
    if (result == CUDA_SUCCESS)
        result = cuModuleEnumerateFunctions(&kernel->function, 1, module);
    if (result == CUDA_SUCCESS)
        result =
            cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                               (int)facts.shared_bytes);
    if (result != CUDA_SUCCESS) {
        (void)cuModuleUnload(module);
        return attnd_engine_fault(result);
    }
    kernel->shared_bytes = facts.shared_bytes;
    kernel->number = facts.kernel;
    kernel->early = !facts.late;
    kernel->decode_rows = facts.decode_rows;
    kernel->module = module;
    return 0;
}

const struct engine_kernel *attnd_engine_kernel(struct attnd_engine *engine, uint32_t number,
                                                int *code)
{
    if (number >= ATTND_KERNELS) {
        *code = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_BACKEND, 0, number, ATTND_KERNELS);
        return NULL;
    }
    struct engine_kernel *kernel = &engine->kernels[number];
    *code = kernel->module ? 0 : load_kernel(engine, number, kernel);
    return *code == 0 ? kernel : NULL;
}

/* ---- the session's block ---- */

static CUresult encode_templates(struct attnd_engine *engine)
{
    CUtensorMap maps[ATTND_MAP_TEMPLATES];
    CUresult result = CUDA_SUCCESS;

    if (!engine->maps)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; i < ATTND_MAP_TEMPLATES && result == CUDA_SUCCESS; i++) {
        const struct attnd_map_shape shape = attnd_map_shape(i);
        cuuint64_t dims[5], strides[4];
        for (uint32_t d = 0; d < 5; d++)
            dims[d] = shape.dims[d];
        for (uint32_t d = 0; d < 4; d++)
            strides[d] = shape.strides[d];
        result = cuTensorMapEncodeTiled(
            &maps[i], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, (void *)(uintptr_t)engine->block, dims,
            strides, shape.box, shape.steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    if (result == CUDA_SUCCESS && engine->facts.templates_bytes != sizeof(maps))
        result = CUDA_ERROR_INVALID_IMAGE;
    if (result == CUDA_SUCCESS)
        result = cuMemcpyHtoDAsync(engine->block + engine->facts.templates_at, maps, sizeof(maps),
                                   engine->stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(engine->stream) : result;
}

static int look_at_device(struct attnd_engine *engine, int *block_bytes)
{
    CUdevice device;
    int count = 0, major = 0;
    CUresult result = cuCtxGetDevice(&device);

    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(
            block_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    engine->workers = (uint32_t)(count < ENGINE_WORKERS_MAX ? count : ENGINE_WORKERS_MAX);
    engine->maps = major >= 9;
    return attnd_engine_fault(result);
}

/* What a cut has beside its static memory, and of how many blocks it is: of one where there are no
 * clusters. */
static CUresult prepare_cut(struct attnd_engine *engine, int block_bytes)
{
    int static_bytes = 0, width = 0;
    CUresult result =
        cuFuncGetAttribute(&static_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, engine->cut);

    if (result == CUDA_SUCCESS)
        result = cuFuncGetAttribute(&width, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, engine->cut);
    const int most = block_bytes - static_bytes;
    engine->cut_blocks = width > 0 ? (uint32_t)width : 1;
    engine->cut_shared_max =
        (uint32_t)(most < ENGINE_CUT_SHARED_BYTES_MAX ? most : ENGINE_CUT_SHARED_BYTES_MAX);
    if (result == CUDA_SUCCESS)
        result = cuFuncSetAttribute(engine->cut, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    (int)engine->cut_shared_max);
    return result;
}

static CUresult find_functions(struct attnd_engine *engine)
{
    CUmodule module = engine->module;
    CUresult result = read_facts(engine, module, "attnd_engine_facts_here", &engine->facts,
                                 sizeof(engine->facts));

    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->open, module, "attnd_engine_open");
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->prepare, module, "attnd_engine_prepare");
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->unprepare, module, "attnd_engine_unprepare");
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->refresh, module, "attnd_engine_refresh");
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->cut, module, "attnd_engine_cut_lengths");
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&engine->rotate, module, "attnd_engine_rotate");
    return result;
}

/* Where kernels count what they execute. */
static CUresult map_account(struct attnd_engine *engine)
{
    const struct attnd_shm *account = &engine->session->account;

    if (account->address == NULL)
        return CUDA_SUCCESS;
    CUresult result =
        cuMemHostRegister(account->address, account->size_bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemHostGetDevicePointer(&engine->account, account->address, 0);
    if (result != CUDA_SUCCESS)
        (void)cuMemHostUnregister(account->address);
    return result;
}

static int make_block(struct attnd_engine *engine)
{
    int rc;
    struct engine_block *block = attnd_engine_alloc(engine, engine->facts.session_bytes, &rc);

    if (block == NULL)
        return rc;
    engine->block = block->address;
    rc = attnd_engine_fault(map_account(engine));
    if (rc < 0)
        return rc;
    rc = attnd_engine_fault(encode_templates(engine));
    if (rc < 0)
        return rc;
    void *arguments[] = {&engine->block, &engine->workers, &engine->account};
    return attnd_engine_call(engine, engine->open, 1, arguments);
}

int attnd_engine_open(struct attnd_session *session, CUstream stream, struct attnd_engine **out)
{
    struct attnd_engine *engine = calloc(1, sizeof(*engine));

    if (engine == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    (void)pthread_mutex_init(&engine->lock, NULL);
    engine->session = session;
    engine->stream = stream;
    int block_bytes = 0;
    int rc = load_file(session, ATTND_KERNELS, &engine->module);
    if (rc == 0)
        rc = attnd_engine_fault(find_functions(engine));
    if (rc == 0)
        rc = look_at_device(engine, &block_bytes);
    if (rc == 0)
        rc = attnd_engine_fault(prepare_cut(engine, block_bytes));
    if (rc == 0)
        rc = make_block(engine);
    if (rc == 0 && (engine->runs = calloc(engine->facts.runs_max, sizeof(void *))) == NULL)
        rc = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    if (rc < 0) {
        attnd_engine_end(engine);
        return rc;
    }
    *out = engine;
    return 0;
}

/* Freeing waits for what runs. The context may be gone: results do not matter. */
void attnd_engine_end(struct attnd_engine *engine)
{
    for (uint64_t i = 0; engine->runs && i < engine->facts.runs_max; i++)
        free(engine->runs[i]);
    free(engine->runs);
    attnd_engine_plans_end(engine);
    attnd_engine_memories_end(engine);
    if (engine->account)
        (void)cuMemHostUnregister(engine->session->account.address);
    while (engine->blocks) {
        struct engine_block *block = engine->blocks;
        engine->blocks = block->next;
        (void)cuMemFree(block->address);
        free(block);
    }
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        if (engine->launched[i])
            (void)cuEventDestroy(engine->launched[i]);
    for (uint32_t i = 0; i < ATTND_KERNELS; i++)
        if (engine->kernels[i].module)
            (void)cuModuleUnload(engine->kernels[i].module);
    if (engine->module)
        (void)cuModuleUnload(engine->module);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}
