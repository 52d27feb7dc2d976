/*
 * doctor.c - `attnctl doctor`: what the machine has of what the service wants.
 */
#include "service/ctl/doctor.h"

#include "service/args/args.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

static const char *const health_names[] = {"OK", "WARN", "FAIL"};

static json_t *finding_json(const struct attnd_finding *finding)
{
    return json_pack("{s:s, s:s, s:o, s:o}", "subject", finding->subject, "health",
                     health_names[finding->health], "what", attnd_json_text(finding->what), "mend",
                     attnd_json_text(finding->mend));
}

static json_t *report_json(const struct attnd_finding *findings, uint32_t count)
{
    const char *worst = health_names[attnd_doctor_worst(findings, count)];
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++)
        if (json_array_append_new(list, finding_json(&findings[i]))) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:o, s:s}", "findings", list, "worst", worst);
}

int attnctl_print_findings(FILE *out, const struct attnd_finding *findings, uint32_t count,
                           int json)
{
    if (json)
        return attnd_json_print(out, report_json(findings, count), JSON_COMPACT);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%-4s  %-9s %s\n", health_names[findings[i].health], findings[i].subject,
                findings[i].what);
        if (findings[i].mend[0])
            fprintf(out, "%16s-> %s\n", "", findings[i].mend);
    }
    return ferror(out) ? -ATTND_E_SYSTEM : 0;
}

enum attnctl_exit attnctl_doctor(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"json", ATTNCTL_KEY_JSON, NULL, 0, "One JSON object", 0},
        {"socket", ATTNCTL_KEY_SOCKET, "PATH", 0,
         "Where the service's socket is, or is to be (default: " ATTND_SOCKET_RULE ")", 0},
        {0}};
    static const struct argp parser = {
        .options = list,
        .parser = attnctl_parse_option,
        .children = attnd_args_help,
        .doc = "Look at this machine as the service will see it, and say what is missing and how "
               "to mend it. Needs no service, and asks one that "
               "runs; run it as the service's user, in its container."};
    struct attnctl_options options = {0};
    struct attnd_finding findings[ATTND_FINDINGS_MAX];

    attnctl_parse_with(&parser, argc, argv, &options);
    uint32_t count = attnd_doctor_all(options.socket_path, findings);
    if (attnctl_print_findings(stdout, findings, count, options.json) < 0 || fflush(stdout) != 0)
        return ATTNCTL_EXIT_ANSWER;
    return attnd_doctor_worst(findings, count) == ATTND_HEALTH_FAIL ? ATTNCTL_EXIT_UNWELL
                                                                    : ATTNCTL_EXIT_OK;
}
