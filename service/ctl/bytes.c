/* bytes.c - sizes as people read them. */
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

const char *attnctl_time_text(uint64_t ns, char *text, size_t text_bytes)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double value = (double)ns;
    unsigned unit = 0;

    while (value >= 1000.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000.0;
        unit++;
    }
    if (ns)
        snprintf(text, text_bytes, value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    else
        snprintf(text, text_bytes, "-");
    return text;
}
