/*
 * config.c - the file is read by inih, and every option in it means what it means on the command
 * line.
 *
 * The command line goes before the file, but names it. So it is read twice: once to find the file,
 * and once more on top of it. The first error of the file counts, with its line. To read again is
 * to read all anew into other options, and to take of those what can change while the service
 * runs. Nothing is taken of a file with an error in it.
 */
#include "service/daemon/config.h"

#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 256

struct reading {
    struct attnd_options *options;
    char message[MESSAGE_BYTES]; /* of the first error */
};

/* The first line of what argp wrote, without the name of the program. */
static void first_line(const char *text, char *message)
{
    static const char name[] = "attnd: ";

    if (strncmp(text, name, sizeof(name) - 1) == 0)
        text += sizeof(name) - 1;
    snprintf(message, MESSAGE_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
}

/* inih's: 1 the line is good, 0 it is not. */
static int on_line(void *context, const char *section, const char *name, const char *value)
{
    struct reading *reading = context;
    char *text = NULL, message[MESSAGE_BYTES] = "";
    size_t bytes = 0;

    reading->options->errors = open_memstream(&text, &bytes);
    if (!reading->options->errors)
        return 0;
    int rc = section[0] ? -ATTND_E_UNKNOWN : attnd_options_take(reading->options, name, value);
    (void)fclose(reading->options->errors);
    reading->options->errors = NULL;
    if (rc == -ATTND_E_UNKNOWN)
        snprintf(message, sizeof(message), "%s%.80s is not an option that a file can have",
                 section[0] ? "section " : "", section[0] ? section : name);
    else if (rc < 0)
        snprintf(message, sizeof(message), "%.80s cannot be '%.80s'", name, value);
    else if (text && text[0])
        first_line(text, message);
    free(text);
    if (message[0] && !reading->message[0])
        memcpy(reading->message, message, sizeof(message));
    return !message[0];
}

/* Return: 0; -ATTND_E_INVALID with @message, of MESSAGE_BYTES. */
static int read_file(struct attnd_options *options, char *message)
{
    struct reading reading = {.options = options};
    FILE *file = fopen(options->config, "re");

    if (!file) {
        snprintf(message, MESSAGE_BYTES, "%.120s: %s", options->config, strerror(errno));
        return -ATTND_E_INVALID;
    }
    const int line = ini_parse_file(file, on_line, &reading);
    (void)fclose(file);
    if (line == 0)
        return 0;
    snprintf(message, MESSAGE_BYTES, "%.100s:%d: %.120s", options->config, line,
             reading.message[0] ? reading.message : "this is not `name = value`");
    return -ATTND_E_INVALID;
}

/* @errors: NULL: a wrong command line ends the program.
 * Return: 0; -ATTND_E_INVALID with @message, "" if it is in @errors. */
static int gather(int argc, char **argv, struct attnd_options *options, FILE *errors, char *message)
{
    char config[sizeof(options->config)];

    message[0] = 0;
    attnd_options_default(options);
    options->errors = errors;
    if (attnd_options_command(argc, argv, options) < 0)
        return -ATTND_E_INVALID;
    if (options->config[0]) {
        memcpy(config, options->config, sizeof(config));
        attnd_options_default(options);
        memcpy(options->config, config, sizeof(config));
        if (read_file(options, message) < 0)
            return -ATTND_E_INVALID;
        options->errors = errors;
        if (attnd_options_command(argc, argv, options) < 0)
            return -ATTND_E_INVALID;
    }
    options->errors = NULL;
    const int rc = attnd_options_finish(options);
    if (rc == 0) {
        attnd_options_describe(options);
        return 0;
    }
    if (rc == -ATTND_E_INVALID)
        snprintf(message, MESSAGE_BYTES,
                 "--peer-listen and peers of other hosts need a key: give --peer-key");
    else
        snprintf(message, MESSAGE_BYTES,
                 "the socket's default path, %s..., has more than %zu bytes: give --socket",
                 options->socket_path, sizeof(options->socket_path) - 1);
    return -ATTND_E_INVALID;
}

void attnd_options_parse(int argc, char **argv, struct attnd_options *options)
{
    char message[MESSAGE_BYTES];

    if (gather(argc, argv, options, NULL, message) == 0)
        return;
    fprintf(stderr, "attnd: %s\n", message);
    exit(ATTND_EXIT_USAGE);
}

void attnd_config_print(FILE *out, const struct attnd_options *options)
{
    for (uint32_t i = 0; i < options->settings_count; i++)
        fprintf(out, "%s = %s ; %s\n", options->settings[i].name, options->settings[i].value,
                options->settings[i].origin);
}

/* ---- again ---- */

static const char *const changeable[] = {"memory-max", "host-memory-max", "device-memory-max",
                                         "allow-uid",  "log-level",       NULL};

const char attnd_origin_manager[] = "service manager";

static void take_over(struct attnd_options *options, const struct attnd_options *fresh)
{
    options->memory_max_bytes = fresh->memory_max_bytes;
    options->host_memory_max_bytes = fresh->host_memory_max_bytes;
    options->device_memory_max_bytes = fresh->device_memory_max_bytes;
    memcpy(options->allow_uids, fresh->allow_uids, sizeof(options->allow_uids));
    options->allow_uids_count = fresh->allow_uids_count;
    options->log_level = fresh->log_level;
    attnd_log_level(options->log_level);
    for (uint32_t i = 0; i < options->settings_count; i++) {
        struct attnd_setting *before = &options->settings[i];
        const struct attnd_setting *now = &fresh->settings[i];
        int can_change = 0;
        if (before->origin == attnd_origin_manager) /* whatever file and command line say */
            continue;
        for (uint32_t j = 0; changeable[j]; j++)
            can_change |= strcmp(changeable[j], now->name) == 0;
        const int changed = strcmp(before->value, now->value) != 0;
        if (changed)
            attnd_log(ATTND_LOG_WARNING, "%s is now %s%s, was %s", now->name, now->value,
                      can_change ? "" : " in the file, from the next start on", before->value);
        if (can_change)
            *before = *now;
    }
}

int attnd_config_reload(int argc, char **argv, struct attnd_options *options)
{
    struct attnd_options fresh;
    char message[MESSAGE_BYTES] = "", *text = NULL;
    size_t bytes = 0;
    FILE *errors = open_memstream(&text, &bytes);
    int rc = errors ? gather(argc, argv, &fresh, errors, message) : -ATTND_E_NO_MEMORY;

    if (errors)
        (void)fclose(errors);
    if (text && text[0] && !message[0])
        first_line(text, message);
    free(text);
    if (rc < 0 || message[0]) {
        attnd_log(ATTND_LOG_ERROR, "nothing is changed: %s", message);
        return -ATTND_E_INVALID;
    }
    take_over(options, &fresh);
    return 0;
}
