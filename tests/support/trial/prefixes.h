/*
 * prefixes.h - operations on the prefix tree, one at a time.
 */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_PREFIXES_H
#define ATTND_TESTS_SUPPORT_TRIAL_PREFIXES_H

#include "client/attnd.h"

/** prefix_args() - blocks @begin to @end of the prompt that begins with @keys[0]. */
struct attnd_prefix_args prefix_args(uint32_t prefix, const struct attnd_prefix_key *keys,
                                     uint32_t begin, uint32_t end);

/** prefix_answer() - wait for the one operation under way, which must succeed. Its pages are copied
 * to @pages, unless that is NULL. */
struct attnd_prefix_result prefix_answer(struct attnd_session *session, int32_t *pages);

#endif
