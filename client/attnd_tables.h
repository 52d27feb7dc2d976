/*
 * attnd_tables.h - page tables: where they may lie, and other forms of them as the CSR arrays of
 * struct attnd_level.
 *
 * The conversions are pure functions of the caller's arrays: no session, any thread, nothing is
 * kept. A block-sparse table needs none of them: a row of blocks is a request, and its blocks are
 * its pages.
 */
#ifndef ATTND_TABLES_H
#define ATTND_TABLES_H

#include "attnd.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * attnd_tables_memory() - memory that the service reads page tables from where they lie
 * @bytes: receives its size, attnd_open_args.tables_bytes rounded up to 64; may be NULL
 * An array of a batch (struct attnd_level, mask_indptr) that lies in it as a whole is not copied by
 * attnd_plan_set(), and must then not change until that operation has completed. What is where is
 * the engine's to say. Zeroed when the session opens; it ends with the session. Return: its
 * address, a multiple of 64; NULL: none was asked for, or in a forked child.
 */
void *attnd_tables_memory(struct attnd_session *session, uint64_t *bytes);

/**
 * attnd_tables_of_dense() - a table with a row of page ids for each request, as FlashAttention-3
 * has it; with page_size 1 SGLang's req_to_token
 * @page_table: [rows][@stride] page ids
 * @rows: [requests] each request's row of it; NULL: 0, 1, 2, ...
 * @cache_seqlens: [requests] keys of each request
 * @kv_indptr, @kv_indices, @kv_last_page_len: receive [requests + 1], @indices_max at most, and
 * [requests]
 * Return: pages in kv_indices; -ATTND_E_RANGE naming kv_len (negative, or more than a row has pages
 * for), requests (a negative row; how many rows there are the caller knows) or page_size;
 * -ATTND_E_NO_SPACE naming kv_indices.
 */
int attnd_tables_of_dense(const int32_t *page_table, uint32_t stride, const int32_t *rows,
                          const int32_t *cache_seqlens, uint32_t requests, uint32_t page_size,
                          int32_t *kv_indptr, int32_t *kv_indices, uint32_t indices_max,
                          int32_t *kv_last_page_len);

/**
 * attnd_tables_of_ragged() - K and V without pages: [keys, heads_kv, head_dim], in which keys
 * @kv_indptr[r] to @kv_indptr[r + 1] are those of request r
 * The pool has page_size 1, and its stride_page is a key's. @kv_indptr is that of the level, too.
 * @kv_indices, @kv_last_page_len: receive [kv_indptr[requests]], @indices_max at most, and
 * [requests]
 * On a GPU pages of one token are slow to prefill: they are not what its copy engine takes.
 * Return: keys; -ATTND_E_RANGE naming kv_indptr, which begins with 0 and does not fall;
 * -ATTND_E_NO_SPACE naming kv_indices.
 */
int attnd_tables_of_ragged(const int32_t *kv_indptr, uint32_t requests, int32_t *kv_indices,
                           uint32_t indices_max, int32_t *kv_last_page_len);

#ifdef __cplusplus
}
#endif
#endif
