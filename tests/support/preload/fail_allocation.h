/*
 * fail_allocation.h - what a test shares with the library that lets allocations fail.
 */
#ifndef ATTND_TESTS_SUPPORT_PRELOAD_FAIL_ALLOCATION_H
#define ATTND_TESTS_SUPPORT_PRELOAD_FAIL_ALLOCATION_H

#include <stdint.h>

struct fail_control {
    uint32_t armed;   /* test: count and fail */
    uint32_t fail_at; /* test: which call since it was armed fails, from 1 */
    uint32_t calls;   /* library: since the test cleared it */
    uint32_t failed;  /* library: 1: it has */
};

#endif
