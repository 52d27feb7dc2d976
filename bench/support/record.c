/* record.c - records to a file and back. A file is written beside its place and renamed over it, so
 * an interrupted run leaves the old one. */
#include "bench/support/record.h"
#include "service/ctl/json.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Digits that a figure may have: its noise is larger than the tenth. */
#define FORMAT (JSON_INDENT(2) | JSON_REAL_PRECISION(9))

static int fail(char *why, size_t why_bytes, const char *what, const char *detail)
{
    snprintf(why, why_bytes, "%s: %s", what, detail);
    return -1;
}

/* ---- the stamp ---- */

/* First line of what @command prints, without its end. Return: the command's exit status, or -1. */
static int ask(const char *command, char *line, size_t line_bytes)
{
    FILE *pipe = popen(command, "re");
    char rest[256];

    line[0] = 0;
    if (!pipe)
        return -1;
    if (fgets(line, (int)line_bytes, pipe))
        line[strcspn(line, "\n")] = 0;
    while (fgets(rest, sizeof(rest), pipe)) {
    }
    return pclose(pipe);
}

static void read_cpu(char *cpu, size_t cpu_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(cpu, cpu_bytes, "unknown");
    while (file && fgets(line, sizeof(line), file)) {
        char *value = strstr(line, ": ");

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(cpu, cpu_bytes, "%s, %ld processors", value + 2, sysconf(_SC_NPROCESSORS_ONLN));
        break;
    }
    if (file)
        fclose(file);
}

/* Where an absolute path begins in a word of a command, "/a/b" or "--to=/a/b"; NULL: nowhere. */
static const char *absolute_path(const char *word)
{
    const char *value = word[0] == '-' ? strchr(word, '=') : NULL;

    value = value ? value + 1 : word;
    return value[0] == '/' ? value : NULL;
}

/* The command as it is kept. Of an absolute path, which says something of one machine alone, the
 * last part stays. */
static void write_command(int argc, char **argv, char *command, size_t command_bytes)
{
    size_t used = 0;

    command[0] = 0;
    for (int i = 0; i < argc && used < command_bytes; i++) {
        const char *path = absolute_path(argv[i]), *last = path ? strrchr(path, '/') + 1 : argv[i];
        int option = path ? (int)(path - argv[i]) : 0;
        int added = snprintf(command + used, command_bytes - used, "%s%.*s%s", i ? " " : "", option,
                             argv[i], last);

        used += added > 0 ? (size_t)added : 0;
    }
}

static bool has_absolute_path(const char *command)
{
    for (const char *word = command; word; word = strchr(word, ' ')) {
        word += strspn(word, " '");
        if (absolute_path(word))
            return true;
    }
    return false;
}

/* What the checkout in the current directory says. Return: NULL, or what is wrong. */
static const char *ask_git(struct bench_stamp *stamp, char *line, size_t line_bytes)
{
    struct bench_record *common = &stamp->common;

    if (ask("git rev-parse --show-toplevel 2>/dev/null", stamp->root, sizeof(stamp->root)) ||
        ask("git rev-parse HEAD 2>/dev/null", common->commit, sizeof(common->commit)))
        return "not in a git checkout with a commit";
    /* Figures and texts change no figure; everything else does. */
    if (ask("git status --porcelain -- \"$(git rev-parse --show-toplevel)\" ':!bench/results' "
            "':!*.md'",
            line, line_bytes))
        return "git status failed";
    common->dirty = line[0] != 0;
    return NULL;
}

/* Programs that were carried elsewhere know no checkout; their bundle says what they are of: a
 * commit, "+" behind it if there were changes. */
static const char *read_packed(struct bench_stamp *stamp, const char *packed, char *line,
                               size_t line_bytes)
{
    size_t length = strspn(packed, "0123456789abcdef");

    if (length < 40 || length >= sizeof(stamp->common.commit) ||
        (packed[length] && strcmp(packed + length, "+") != 0))
        return "ATTND_COMMIT is not a commit, or a commit and '+'";
    snprintf(stamp->common.commit, sizeof(stamp->common.commit), "%.*s", (int)length, packed);
    stamp->common.dirty = packed[length] != 0;
    snprintf(line, line_bytes, "ATTND_COMMIT=%s", packed);
    return NULL;
}

int bench_stamp_take(struct bench_stamp *stamp, const char *device, bool allow_dirty, int argc,
                     char **argv, char *why, size_t why_bytes)
{
    struct bench_record *common = &stamp->common;
    time_t now = time(NULL);
    struct tm utc;
    const char *packed = getenv("ATTND_COMMIT"), *wrong;
    char line[256];

    *stamp = (struct bench_stamp){.allow_dirty = allow_dirty};
    wrong = packed ? read_packed(stamp, packed, line, sizeof(line))
                   : ask_git(stamp, line, sizeof(line));
    if (wrong)
        return fail(why, why_bytes, "records", wrong);
    if (common->dirty && !allow_dirty)
        return fail(why, why_bytes, "uncommitted changes; --allow-dirty measures all the same",
                    line);
    gmtime_r(&now, &utc);
    strftime(common->date, sizeof(common->date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(common->device, sizeof(common->device), "%s", device);
    read_cpu(common->cpu, sizeof(common->cpu));
    write_command(argc, argv, common->command, sizeof(common->command));
    return 0;
}

struct bench_record bench_record_make(const struct bench_stamp *stamp, const char *name,
                                      double value, const char *unit, const char *better,
                                      const char *notes)
{
    struct bench_record record = stamp->common;

    record.value = value;
    snprintf(record.name, sizeof(record.name), "%s", name);
    snprintf(record.unit, sizeof(record.unit), "%s", unit);
    snprintf(record.better, sizeof(record.better), "%s", better);
    snprintf(record.notes, sizeof(record.notes), "%s", notes ? notes : "");
    return record;
}

/* ---- writing ---- */

#define PLACE(field) offsetof(struct bench_record, field), sizeof(((struct bench_record *)0)->field)
/* Fields of a record that are texts. */
static const struct {
    const char *key;
    size_t offset, bytes;
} texts[] = {
    {"name", PLACE(name)},     {"unit", PLACE(unit)},       {"better", PLACE(better)},
    {"device", PLACE(device)}, {"cpu", PLACE(cpu)},         {"date", PLACE(date)},
    {"commit", PLACE(commit)}, {"command", PLACE(command)}, {"notes", PLACE(notes)},
};
#undef PLACE
#define TEXTS (sizeof(texts) / sizeof(texts[0]))

static json_t *record_json(const struct bench_record *record)
{
    json_t *object = json_object();

    for (size_t i = 0; i < TEXTS; i++)
        json_object_set_new(object, texts[i].key,
                            attnd_json_text((const char *)record + texts[i].offset));
    json_object_set_new(object, "value", attnd_json_real(record->value));
    json_object_set_new(object, "dirty", json_boolean(record->dirty));
    return object;
}

static json_t *records_json(const struct bench_record *records, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(list, record_json(&records[i]))) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:o}", "records", list);
}

/* The folder whose records are under version control. */
static bool is_results(const struct bench_stamp *stamp, const char *directory)
{
    char results[sizeof(stamp->root) + 16], given[PATH_MAX], kept[PATH_MAX];

    if (!stamp->root[0])
        return false;
    snprintf(results, sizeof(results), "%s/bench/results", stamp->root);
    return realpath(results, kept) && realpath(directory, given) && !strcmp(kept, given);
}

int bench_records_write(const struct bench_stamp *stamp, const char *directory, const char *suite,
                        const struct bench_record *records, size_t count, char *why,
                        size_t why_bytes)
{
    char path[PATH_MAX], beside[PATH_MAX + 16];
    FILE *file;
    int failed;
    int length =
        snprintf(path, sizeof(path), "%s/%s-%s.json", directory, suite, stamp->common.device);

    if (stamp->common.dirty && (!stamp->allow_dirty || is_results(stamp, directory)))
        return fail(why, why_bytes, directory, "takes no figures of uncommitted changes");
    if (length < 0 || (size_t)length >= sizeof(path))
        return fail(why, why_bytes, directory, "the path is too long");
    snprintf(beside, sizeof(beside), "%s.%ld", path, (long)getpid());
    file = fopen(beside, "we");
    if (!file)
        return fail(why, why_bytes, beside, strerror(errno));
    failed = attnd_json_print(file, records_json(records, count), FORMAT) < 0;
    failed |= fclose(file) != 0;
    if (failed || rename(beside, path)) {
        fail(why, why_bytes, path, strerror(errno));
        unlink(beside);
        return -1;
    }
    return 0;
}

/* ---- reading ---- */

/* Return: NULL, or why it is not a record. */
static const char *read_record(const json_t *object, struct bench_record *record)
{
    const json_t *value = json_object_get(object, "value"),
                 *dirty = json_object_get(object, "dirty");

    if (json_object_size(object) != TEXTS + 2 || !json_is_number(value) || !json_is_boolean(dirty))
        return "an element has not the members of a record";
    for (size_t i = 0; i < TEXTS; i++) {
        const json_t *text = json_object_get(object, texts[i].key);

        if (!json_is_string(text) || json_string_length(text) >= texts[i].bytes)
            return "a text of a record is missing or too long";
        memcpy((char *)record + texts[i].offset, json_string_value(text),
               json_string_length(text) + 1);
    }
    record->value = json_number_value(value);
    record->dirty = json_boolean_value(dirty);
    if (strcmp(record->better, "lower") != 0 && strcmp(record->better, "higher") != 0)
        return "better is neither lower nor higher";
    if (has_absolute_path(record->command))
        return "command has an absolute path, which says something of one machine alone";
    return NULL;
}

/* Return: NULL and how many, or why the file is refused. */
static const char *read_records(const json_t *root, struct bench_record *records, int *count)
{
    const json_t *list = json_object_get(root, "records");
    const char *wrong = NULL;

    if (json_object_size(root) != 1 || !json_is_array(list))
        return "it is not {\"records\": [...]}";
    if (json_array_size(list) > BENCH_RECORDS_MAX)
        return "more records than a file may have";
    *count = (int)json_array_size(list);
    for (int i = 0; i < *count && !wrong; i++)
        wrong = read_record(json_array_get(list, (size_t)i), &records[i]);
    return wrong;
}

int bench_records_read(const char *path, struct bench_record *records, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    int count = 0;
    const char *wrong = error.text;

    memset(records, 0, BENCH_RECORDS_MAX * sizeof(records[0]));
    if (root)
        wrong = read_records(root, records, &count);
    if (wrong)
        fail(why, why_bytes, path, wrong);
    json_decref(root);
    return wrong ? -1 : count;
}
