/*
 * metrics.c - `attnctl metrics`: what `attnd --metrics` serves, once and to standard output.
 */
#include "service/base/metrics.h"
#include "service/ctl/attnctl.h"

enum attnctl_exit attnctl_metrics(int argc, char **argv)
{
    static const char doc[] =
        "Print counters, gauges and histograms in the text format of Prometheus, as "
        "`attnd --metrics` serves them.";
    const struct attnctl_options options = attnctl_parse(argc, argv, NULL, doc);
    Attnd__Reply *reply;

    enum attnctl_exit code = attnctl_ask_status(options.socket_path, &reply);
    if (code != ATTNCTL_EXIT_OK)
        return code;
    attnd_metrics_print(stdout, reply->status);
    attnd__reply__free_unpacked(reply, NULL);
    return fflush(stdout) == 0 ? ATTNCTL_EXIT_OK : ATTNCTL_EXIT_ANSWER;
}
