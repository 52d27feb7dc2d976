/*
 * tensor_maps.h - the shapes of the tensor maps by which kernels copy pages, one for each template.
 *
 * A map must be encoded by the driver's library, on the host. Where planes lie, and how long they
 * are, is replaced on the device (map_run() in persistent/cuda/dispatch/resolve.cuh), so the
 * numbers here that are no box are only ones that the library accepts.
 */
#ifndef ATTND_SCHEMAS_TENSOR_MAPS_H
#define ATTND_SCHEMAS_TENSOR_MAPS_H

#include <stdint.h>

/* For head dimensions of 1, 2, 4 panels of 64: of V, boxes of 16 tokens; then of K, of 16, 32, 64.
 * Then of latents, 9 panels of 16 tokens; and of K of 192 dims, 3 panels of 16, 32, 64. */
#define ATTND_MAP_DIMS 3u
#define ATTND_MAP_HEIGHTS 3u
#define ATTND_MAP_LATENTS (ATTND_MAP_DIMS * (1 + ATTND_MAP_HEIGHTS))
#define ATTND_MAP_192 (ATTND_MAP_LATENTS + 1)
#define ATTND_MAP_TEMPLATES (ATTND_MAP_192 + ATTND_MAP_HEIGHTS)
#define ATTND_MAP_BYTES 128u

struct attnd_map_shape {
    uint64_t dims[5], strides[4]; /* elements, bytes */
    uint32_t box[5], steps[5];
};

/** attnd_map_shape() - of template @index, for the library's encoder: 5 dimensions of 16-bit
 * elements, swizzled by 128 bytes. */
static inline struct attnd_map_shape attnd_map_shape(uint32_t index)
{
    const int latents = index == ATTND_MAP_LATENTS, of_192 = index >= ATTND_MAP_192;
    const uint32_t panels = latents ? 9 : of_192 ? 3 : 1u << index % ATTND_MAP_DIMS;
    const uint32_t height = latents  ? 1
                            : of_192 ? 1 + index - ATTND_MAP_192
                                     : index / ATTND_MAP_DIMS; /* 0: of V */
    const struct attnd_map_shape shape = {
        {64, 64, 9, 8, 1},
        {2048, 128, 131072, 131072},
        {64, height ? 8u : 16u, panels, height ? 1u << height : 1u, 1},
        {1, 1, 1, 1, 1}};
    return shape;
}

#endif
