/*
 * hand_over.c - a figure of this machine or none: one of another machine would be believed.
 */
#include "service/base/hand_over.h"

#include <inttypes.h>
#include <stdio.h>

const char *attnd_hand_over_text(int64_t hand_over_us, char *text, size_t bytes)
{
    char price[80] = ", which have not been measured here";

    if (hand_over_us > 0)
        snprintf(price, sizeof(price), ", %" PRId64 " us as measured here", hand_over_us);
    else if (hand_over_us == ATTND_HAND_OVER_UNTOLD)
        snprintf(price, sizeof(price), " (measured at the service's start; none runs here)");
    snprintf(text, bytes,
             "processes take turns on the GPU: each run in an engine's stream costs two switches%s",
             price);
    return text;
}
