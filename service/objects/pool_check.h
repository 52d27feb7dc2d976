/*
 * pool_check.h - a PoolCreate against the rules, before anything is made for it.
 */
#ifndef ATTND_SERVICE_OBJECTS_POOL_CHECK_H
#define ATTND_SERVICE_OBJECTS_POOL_CHECK_H

#include "schemas/abi.h"
#include "schemas/attnd.pb-c.h"
#include "schemas/errors.h"

/** attnd_pool_check_shape() - every scalar. Return: 0, -ATTND_E_RANGE, -ATTND_E_UNSUPPORTED. */
int attnd_pool_check_shape(const Attnd__PoolCreate *desc, struct attnd_heap_pool *shape,
                           struct attnd_fault *fault);

/** attnd_pool_check_variant() - does the worker execute a head dimension and element type that
 * attnd_pool_check_shape() let pass? Return: 0; -ATTND_E_UNSUPPORTED (field head_dim or dtype,
 * limit what it has). */
int attnd_pool_check_variant(const struct attnd_worker_info *worker,
                             const struct attnd_heap_pool *shape, struct attnd_fault *fault);

/** attnd_pool_check_plane() - strides and extent of one plane in memory of @memory_bytes
 * @field: K or V; @layer: the fault's index. Return: 0; -ATTND_E_RANGE (of a stride that lets pages
 * overlap, the limit is one that does not); -ATTND_E_INVALID. */
int attnd_pool_check_plane(const struct attnd_heap_pool *shape, const Attnd__Plane *plane,
                           uint64_t memory_bytes, enum attnd_field field, uint32_t layer,
                           struct attnd_fault *fault);

/** attnd_pool_plane_bytes() - one contiguous plane. Return: 0, -ATTND_E_RANGE on overflow of all
 * planes together. */
int attnd_pool_plane_bytes(const struct attnd_heap_pool *shape, uint64_t *bytes,
                           struct attnd_fault *fault);

#endif
