/*
 * control_decode.c - what a client says, as far as its form goes.
 *
 * Hello and StatusQuery tolerate fields that this version does not know, so that newer clients can
 * introduce themselves and newer tools can ask. Everywhere else an unknown field would be a wish
 * silently not granted, and is refused.
 */
#include "service/rpc/control_decode.h"

static int tolerates_unknown(const Attnd__Request *request)
{
    return request->call_case == ATTND__REQUEST__CALL_HELLO ||
           request->call_case == ATTND__REQUEST__CALL_STATUS;
}

int attnd_control_decode(const void *bytes, size_t size_bytes, struct attnd_admit_alloc *alloc,
                         Attnd__Request **out)
{
    *out = attnd__request__unpack(&alloc->allocator, size_bytes, bytes);
    if (!*out)
        return -ATTND_E_PROTOCOL;
    if ((*out)->call_case == ATTND__REQUEST__CALL__NOT_SET)
        return -ATTND_E_UNSUPPORTED;
    if (!tolerates_unknown(*out) && !attnd_admit_known(&(*out)->base))
        return -ATTND_E_UNSUPPORTED;
    return 0;
}
