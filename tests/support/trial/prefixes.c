/* prefixes.c - see prefixes.h. */
#include "tests/support/trial/prefixes.h"

#include "tests/support/harness/check.h"

#include <string.h>

#define WAIT_NS 20000000000u

struct attnd_prefix_args prefix_args(uint32_t prefix, const struct attnd_prefix_key *keys,
                                     uint32_t begin, uint32_t end)
{
    return (struct attnd_prefix_args){.size = sizeof(struct attnd_prefix_args),
                                      .prefix = prefix,
                                      .blocks = end - begin,
                                      .keys = keys + begin,
                                      .parent = begin ? &keys[begin - 1] : NULL};
}

struct attnd_prefix_result prefix_answer(struct attnd_session *session, int32_t *pages)
{
    struct attnd_prefix_result result = {.size = sizeof(result)};
    struct attnd_completion done;

    CHECK_EQUAL(attnd_wait(session, &done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
    CHECK_OK(attnd_prefix_result(session, &done, &result));
    if (pages && result.pages_count)
        memcpy(pages, result.pages, result.pages_count * sizeof(*pages));
    return result;
}
