/*
 * explain.c - what all commands say in the same words: refusals, and sizes.
 */
#include "service/ctl/attnctl.h"

const char *attnctl_bytes(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, text_bytes, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

enum attnctl_exit attnctl_explain_refusal(const Attnd__Reply *reply)
{
    char text[256];
    const struct attnd_fault fault = {.code = reply->code,
                                      .field = reply->field,
                                      .index = reply->index,
                                      .value = reply->value,
                                      .limit = reply->limit};

    fprintf(stderr, "attnctl: the service answers %s\n",
            attnd_fault_string(&fault, text, sizeof(text)));
    return ATTNCTL_EXIT_ANSWER;
}
