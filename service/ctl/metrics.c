/*
 * metrics.c - `attnctl metrics`: what `attnd --metrics` serves, once and to standard output.
 */
#include "service/base/metrics.h"
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

enum attnctl_exit attnctl_metrics(int argc, char **argv)
{
    static const struct argp_option list[] = {ATTNCTL_SOCKET_OPTION, {0}};
    static const struct argp parser = {
        .options = list,
        .parser = attnctl_parse_option,
        .children = attnd_args_help,
        .doc = "Print counters, gauges and histograms in the text format of Prometheus, as "
               "`attnd --metrics` serves them."};
    struct attnctl_options options = {0};
    Attnd__Reply *reply;

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    enum attnctl_exit code = attnctl_ask_status(options.socket_path, &reply);
    if (code != ATTNCTL_EXIT_OK)
        return code;
    attnd_metrics_print(stdout, reply->status);
    attnd__reply__free_unpacked(reply, NULL);
    return fflush(stdout) == 0 ? ATTNCTL_EXIT_OK : ATTNCTL_EXIT_ANSWER;
}
