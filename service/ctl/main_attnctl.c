/*
 * main_attnctl.c - `attnctl COMMAND [OPTION...]`: finds the command, which parses the rest itself.
 */
#include "schemas/version.h"
#include "service/ctl/attnctl.h"

#include <string.h>

struct command {
    const char *name;
    enum attnctl_exit (*run)(int argc, char **argv);
    const char *text;
};

static const struct command commands[] = {
    {"status", attnctl_status, "what the service is and what its sessions do (--json)"},
    {"top", attnctl_top, "what sessions do now: rates, share, latency (--once, --json)"},
    {"latency", attnctl_latency, "how long runs took: quantiles and a histogram (--json)"},
    {"ping", attnctl_ping, "round trip of a call, and whether the worker moves (--json)"},
    {"monitor", attnctl_monitor, "operations and faults as they happen (--session, --json)"},
    {"trace", attnctl_trace, "what the worker executes, as a timeline for Perfetto (--output)"},
    {"kill", attnctl_kill, "end a session, by its number"},
    {"metrics", attnctl_metrics, "the same numbers as text for Prometheus"},
    {"weight", attnctl_weight, "how much of the worker a session gets beside others"},
    {"prefix", attnctl_prefix, "the prefix trees: namespaces, blocks, hits, memory (--json)"},
    {"peers", attnctl_peers, "other services that pages are brought from, or lent to (--json)"},
    {"doctor", attnctl_doctor,
     "what this machine lacks for the service, and how to mend it (--json)"},
};
#define COMMANDS_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: attnctl COMMAND [OPTION...]\n\nCommands:\n");
    for (size_t i = 0; i < COMMANDS_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(out, "\n`attnctl COMMAND --help` lists the options of one; --version prints the "
                 "version.\n\n"
                 "Exit codes:\n"
                 "  0  done\n"
                 "  1  bad option or usage\n"
                 "  2  no service can be reached\n"
                 "  4  the service refused, or its answer makes no sense\n"
                 "  5  doctor found something that FAILs, or ping a worker that does not move\n");
}

int main(int argc, char **argv)
{
    char name[64];

    if (argc < 2) {
        print_usage(stderr);
        return ATTNCTL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "-?") == 0) {
        print_usage(stdout);
        return ATTNCTL_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("attnctl %s\n", ATTND_VERSION);
        return ATTNCTL_EXIT_OK;
    }
    for (size_t i = 0; i < COMMANDS_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            /* What its --help calls it. */
            snprintf(name, sizeof(name), "attnctl %s", commands[i].name);
            argv[1] = name;
            return (int)commands[i].run(argc - 1, argv + 1);
        }
    fprintf(stderr, "attnctl: there is no command '%s' (try attnctl --help)\n", argv[1]);
    return ATTNCTL_EXIT_USAGE;
}
