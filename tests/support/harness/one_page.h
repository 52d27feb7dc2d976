/*
 * one_page.h - pools and plans of one page that stands for all of a request's: batches of any
 * length over a few bytes.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_ONE_PAGE_H
#define ATTND_TESTS_SUPPORT_HARNESS_ONE_PAGE_H

#include "client/attnd.h"

struct one_page {
    uint32_t memory, pool, plan;
};

/**
 * one_page_make() - a pool of one head of 64 and a plan of one query head over it; one token's
 * place serves for all of the page's
 * @page_size:  tokens; 2^20 of them cost 128 bytes
 * @requests:   of the plan, of one row each
 * @pages:      of the plan
 * @rows_bytes: of `memory`, from its begin, for the caller's rows; the page lies behind them
 * Return: 0, or what the service refused.
 */
int one_page_make(struct attnd_session *session, uint32_t page_size, uint32_t requests,
                  uint32_t pages, uint64_t rows_bytes, struct one_page *made);

/** planes_pool() - a pool over planes of the caller's: one head of @dim, fp16, pages of the engine.
 * Return: as attnd_pool_create(). */
int planes_pool(struct attnd_session *session, const struct attnd_plane *k,
                const struct attnd_plane *v, uint32_t pages, uint32_t page_size, uint32_t dim,
                uint32_t *pool);

/** plain_planes_pool() - the same with one page: K at @offset_bytes of @memory, V right behind. */
uint32_t plain_planes_pool(struct attnd_session *session, uint32_t memory, uint64_t offset_bytes,
                           uint32_t page_size, uint32_t dim);

/* Requests that are all alike, each of page 0 as often as it says, to its last token. */
struct one_page_batch {
    uint32_t requests, rows, pages, page_size, heads_q;
    struct attnd_strides q;
};

/** one_page_plan() - a plan of them that is set; awaited. Fails the test otherwise. */
uint32_t one_page_plan(struct attnd_session *session, uint32_t pool,
                       const struct one_page_batch *batch);

#endif
