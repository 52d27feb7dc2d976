/*
 * batch_check.h - whether a batch keeps the contract of schemas/batch.h: what admission must hold
 * whatever its input was.
 */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_BATCH_CHECK_H
#define ATTND_TESTS_SUPPORT_ORACLE_BATCH_CHECK_H

#include "schemas/batch.h"

/** batch_check() - NULL, or what is broken; static storage. Reads every element. */
const char *batch_check(const struct attnd_batch_view *batch,
                        const struct attnd_batch_limits *limits);

/** advance_check() - the same for an advance, as far as admission promises. */
const char *advance_check(const struct attnd_advance_view *advance,
                          const struct attnd_batch_limits *limits);

#endif
