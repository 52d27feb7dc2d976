/*
 * pool_fields.h - what describes a pool has fields of the same names in each of its forms: in the
 * heap, in a call, between two services, and in the public interface.
 */
#ifndef ATTND_SCHEMAS_POOL_FIELDS_H
#define ATTND_SCHEMAS_POOL_FIELDS_H

/* From one form of a pool's shape to another; both are pointers, of any of these types. */
#define ATTND_POOL_SHAPE_COPY(to, from)                                                            \
    do {                                                                                           \
        (to)->layers = (from)->layers;                                                             \
        (to)->pages = (from)->pages;                                                               \
        (to)->page_size = (from)->page_size;                                                       \
        (to)->heads_kv = (from)->heads_kv;                                                         \
        (to)->dim_qk = (from)->dim_qk;                                                             \
        (to)->dim_vo = (from)->dim_vo;                                                             \
        (to)->dtype = (from)->dtype;                                                               \
    } while (0)

/* The same of a plane, except for its memory, which each form names in its own way. */
#define ATTND_PLANE_PLACE_COPY(to, from)                                                           \
    do {                                                                                           \
        (to)->offset_bytes = (from)->offset_bytes;                                                 \
        (to)->stride_page = (from)->stride_page;                                                   \
        (to)->stride_token = (from)->stride_token;                                                 \
        (to)->stride_head = (from)->stride_head;                                                   \
    } while (0)

#endif
