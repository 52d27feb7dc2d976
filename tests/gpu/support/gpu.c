/* gpu.c - a context, and how an engine's bytes get to the device and back. */
#include "tests/gpu/support/gpu.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/harness.h"

static CUresult try_on(int number)
{
    CUdevice device;
    CUcontext context;
    CUresult result = cuInit(0);

    if (result == CUDA_SUCCESS)
        result = cuDeviceGet(&device, number);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    return result;
}

CUresult gpu_try(void)
{
    return try_on(0);
}

void gpu_open_on(int number)
{
    CHECK_CUDA(try_on(number));
}

void gpu_open(void)
{
    gpu_open_on(0);
}

static int probe(void *context)
{
    (void)context;
    return gpu_try() == CUDA_SUCCESS ? 0 : GPU_SKIPPED;
}

int gpu_there(void)
{
    return harness_join(harness_fork(probe, NULL), 30000) == 0;
}

static int is_there(void *context)
{
    (void)context;
    return gpu_there();
}

void gpu_await(void)
{
    harness_eventually(is_there, NULL, 60000, "a process has a context");
}

int gpu_under_mps(void)
{
    return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL;
}

static uint64_t map(struct attnd_session *session, uint32_t memory)
{
    CUdeviceptr address = 0;

    CHECK_OK(attnd_cuda_map(session, memory, &address));
    return address;
}

static void unmap(uint64_t address)
{
    CHECK_OK(attnd_cuda_unmap(address));
}

static void push(uint64_t to, const void *from, uint64_t bytes)
{
    CHECK_CUDA(cuMemcpyHtoD(to, from, bytes));
    CHECK_CUDA(cuCtxSynchronize()); /* pageable: the last bytes may still be on their way */
}

static void pull(void *to, uint64_t from, uint64_t bytes)
{
    CHECK_CUDA(cuMemcpyDtoH(to, from, bytes));
}

static void stay_mapped(uint64_t address)
{
    (void)address;
}

void gpu_engine_open_own(struct engine *engine, const char *socket_path, const char *name,
                         uint32_t (*make)(struct attnd_session *session, uint64_t bytes),
                         uint64_t (*address_of)(struct attnd_session *session, uint32_t memory))
{
    static struct engine_device device;

    device = (struct engine_device){
        .make = make, .map = address_of, .unmap = stay_mapped, .push = push, .pull = pull};
    engine_open_device(engine, socket_path, name, &device);
}

void gpu_engine_open(struct engine *engine, const char *socket_path, const char *name)
{
    static const struct engine_device device = {
        .map = map, .unmap = unmap, .push = push, .pull = pull};

    engine_open_device(engine, socket_path, name, &device);
}
