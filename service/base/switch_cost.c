/*
 * switch_cost.c - a figure of this machine or none: one of another machine would be believed.
 */
#include "service/base/switch_cost.h"

#include <inttypes.h>
#include <stdio.h>

const char *attnd_switch_cost_text(int64_t switch_cost_us, char *text, size_t bytes)
{
    char price[80] = ", which have not been measured here";

    if (switch_cost_us > 0)
        snprintf(price, sizeof(price), ", %" PRId64 " us as measured here", switch_cost_us);
    else if (switch_cost_us == ATTND_SWITCH_COST_UNTOLD)
        snprintf(price, sizeof(price), " (measured at the service's start; none runs here)");
    snprintf(text, bytes,
             "processes take turns on the GPU: each run in an engine's stream costs two switches%s",
             price);
    return text;
}
