/* abi_assert.h - layouts asserted beside their definitions, in every dialect that compiles them. */
#ifndef ATTND_SCHEMAS_ABI_ASSERT_H
#define ATTND_SCHEMAS_ABI_ASSERT_H

#include <assert.h>
#include <stddef.h>

#ifdef __cplusplus
#define ATTND_ASSERT_ABI(condition) static_assert(condition, #condition)
#else
#define ATTND_ASSERT_ABI(condition) _Static_assert(condition, #condition)
#endif
#define ATTND_ASSERT_SIZE(type, bytes) ATTND_ASSERT_ABI(sizeof(struct type) == (bytes))
#define ATTND_ASSERT_AT(type, field, bytes)                                                        \
    ATTND_ASSERT_ABI(offsetof(struct type, field) == (bytes))

#endif
