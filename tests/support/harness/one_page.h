/*
 * one_page.h - a plan over a pool of one page, in which one token's place serves for all of a
 * page's: batches of any length over a few bytes.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_ONE_PAGE_H
#define ATTND_TESTS_SUPPORT_HARNESS_ONE_PAGE_H

#include "client/attnd.h"

struct one_page {
    uint32_t memory, pool, plan;
};

/**
 * one_page_make() - a pool of one head of 64 and a plan of one query head over it
 * @page_size:  tokens; 2^20 of them cost 128 bytes
 * @requests:   of the plan, of one row each
 * @pages:      of the plan
 * @rows_bytes: of `memory`, from its begin, for the caller's rows; the page lies behind them
 * Return: 0, or what the service refused.
 */
int one_page_make(struct attnd_session *session, uint32_t page_size, uint32_t requests,
                  uint32_t pages, uint64_t rows_bytes, struct one_page *made);

#endif
