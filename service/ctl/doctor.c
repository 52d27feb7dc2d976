/*
 * attnctl_doctor.c - `attnctl doctor`: what the machine has of what the service wants.
 */
#include "service/ctl/doctor.h"
#include "service/ctl/attnctl.h"

#include <string.h>

static const char *const health_names[] = {"OK", "WARN", "FAIL"};

static void print_member(FILE *out, const char *name, const char *text, const char *separator)
{
    fprintf(out, "\"%s\":", name);
    attnctl_print_json_string(out, text);
    fputs(separator, out);
}

void attnctl_print_findings(FILE *out, const struct attnd_finding *findings, uint32_t count,
                            int json)
{
    if (json) {
        fputs("{\"findings\":[", out);
        for (uint32_t i = 0; i < count; i++) {
            fputs(i ? ",{" : "{", out);
            print_member(out, "subject", findings[i].subject, ",");
            print_member(out, "health", health_names[findings[i].health], ",");
            print_member(out, "what", findings[i].what, ",");
            print_member(out, "mend", findings[i].mend, "}");
        }
        fprintf(out, "],\"worst\":\"%s\"}\n", health_names[attnd_doctor_worst(findings, count)]);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%-4s  %-9s %s\n", health_names[findings[i].health], findings[i].subject,
                findings[i].what);
        if (findings[i].mend[0])
            fprintf(out, "%16s-> %s\n", "", findings[i].mend);
    }
}

enum attnctl_exit attnctl_doctor(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"json", ATTNCTL_KEY_JSON, NULL, 0, "One JSON object", 0},
        {"socket", ATTNCTL_KEY_SOCKET, "PATH", 0,
         "Where the service's socket is, or is to be (default: $ATTND_SOCKET, else "
         "$XDG_RUNTIME_DIR/attnd.sock)",
         0},
        {0}};
    static const struct argp parser = {
        .options = list,
        .parser = attnctl_parse_option,
        .doc = "Look at this machine as the service will see it, and say what is missing and how "
               "to mend it. Needs no service; run it as the service's user, in its container."};
    struct attnctl_options options = {0};
    struct attnd_finding findings[ATTND_FINDINGS_MAX];

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    uint32_t count = attnd_doctor_all(options.socket_path, findings);
    attnctl_print_findings(stdout, findings, count, options.json);
    if (fflush(stdout) != 0)
        return ATTNCTL_EXIT_ANSWER;
    return attnd_doctor_worst(findings, count) == ATTND_HEALTH_FAIL ? ATTNCTL_EXIT_UNWELL
                                                                    : ATTNCTL_EXIT_OK;
}
