/*
 * one_key.h - the smallest attention whose result is known to the bit: one query and one key, so
 * the output is the key's value. For tests that ask whose bytes were read and written, not how.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_ONE_KEY_H
#define ATTND_TESTS_GPU_SUPPORT_ONE_KEY_H

#include "client/attnd.h"

#include <cuda.h>

#define ONE_KEY_PLANES_BYTES 4096u /* K, then V: a page of 16 tokens, one head of 64, fp16 */
#define ONE_KEY_ROWS_BYTES 256u    /* q, then o */

/** one_key_fill() - planes at @planes whose value depends on @salt; q and a poisoned o at @rows. */
void one_key_fill(CUdeviceptr planes, CUdeviceptr rows, uint32_t salt);

/** one_key_pool() - a pool over planes that were filled. */
uint32_t one_key_pool(struct attnd_session *session, const struct attnd_tensor *planes);

/** one_key_run() - plan and run on such a pool. Return: the code of the run's completion, details
 * in *@fault. */
int one_key_run(struct attnd_session *session, uint32_t pool, const struct attnd_tensor *rows,
                struct attnd_fault *fault);

/** one_key_run_on_page() - the same with this page id. Return: the code of the plan_set if that
 * fails. */
int one_key_run_on_page(struct attnd_session *session, uint32_t pool,
                        const struct attnd_tensor *rows, int32_t page, struct attnd_fault *fault);

/** one_key_try_pool() - a pool of 2 pages, @stride_page elements apart (0: none). Return: the code;
 * what is made is released again. */
int one_key_try_pool(struct attnd_session *session, const struct attnd_tensor *planes,
                     int64_t stride_page);

/** one_key_right() - 1 if o at @rows is the value of @salt. */
int one_key_right(CUdeviceptr rows, uint32_t salt);

/* ---- allocations ---- */

/* As an engine comes to have memory of each kind, all of it filled with zeros. */
struct allocation {
    CUdeviceptr address;
    uint64_t bytes;
    uint32_t memory_kind; /* ATTND_MEMORY_DEVICE, _POOL, _IPC */
    CUmemoryPool pool;
};

/** allocate() - on the GPU of the current context; @bytes: a multiple of 2 MiB for
 * ATTND_MEMORY_DEVICE. */
struct allocation allocate(uint32_t memory_kind, uint64_t bytes);
void deallocate(const struct allocation *allocation);

/** stand_for() - what an engine sends for it; the descriptor is the caller's to close. */
struct attnd_memory_desc stand_for(const struct allocation *allocation);

#endif
