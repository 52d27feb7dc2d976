/*
 * cuda_none.c - stands in for the CUDA backend where there is no nvcc, so that nothing else needs
 * to know: a caller that asks for it learns that this build does not have it.
 */
#include "persistent/backend.h"

static int create(const struct attnd_backend_config *config, struct attnd_backend **out,
                  struct attnd_fault *fault)
{
    (void)config;
    *out = NULL;
    return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_NONE, 0, 0, 0);
}

static int refuse(struct attnd_backend *backend)
{
    (void)backend;
    return -ATTND_E_UNSUPPORTED;
}

static int refuse_map(struct attnd_backend *backend, uint32_t index,
                      const struct attnd_memory_source *source, struct attnd_fault *fault)
{
    (void)backend;
    (void)source;
    return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, index, 0, 0);
}

static int refuse_unmap(struct attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    (void)backend;
    (void)indices;
    (void)count;
    return -ATTND_E_UNSUPPORTED;
}

static int refuse_copy(struct attnd_backend *backend, uint64_t offset_bytes)
{
    (void)backend;
    (void)offset_bytes;
    return -ATTND_E_UNSUPPORTED;
}

static void destroy(struct attnd_backend *backend)
{
    (void)backend;
}

const struct attnd_backend_ops attnd_backend_cuda = {
    .name = "cuda",
    .create = create,
    .start = refuse,
    .map = refuse_map,
    .unmap = refuse_unmap,
    .copy = refuse_copy,
    .bring = refuse_copy,
    .park = refuse,
    .destroy = destroy,
};
