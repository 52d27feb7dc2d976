/* record.c - records to a file and back. A file is written beside its place and renamed over it, so
 * an interrupted run leaves the old one. */
#include "bench/support/record.h"
#include "bench/support/json.h"
#include "bench/support/json_out.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES_MAX (1u << 20)

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

static void write_command(int argc, char **argv, char *command, size_t command_bytes)
{
    size_t used = 0;

    command[0] = 0;
    for (int i = 0; i < argc && used < command_bytes; i++) {
        int added = snprintf(command + used, command_bytes - used, "%s%s", i ? " " : "", argv[i]);
        used += added > 0 ? (size_t)added : 0;
    }
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

/* Programs that were carried elsewhere know no checkout; who packed them says what they are of: a
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

static void write_record(struct bench_json_out *out, const struct bench_record *record)
{
    bench_json_out_object(out, NULL);
    bench_json_out_string(out, "name", record->name);
    bench_json_out_double(out, "value", record->value);
    bench_json_out_string(out, "unit", record->unit);
    bench_json_out_string(out, "better", record->better);
    bench_json_out_string(out, "device", record->device);
    bench_json_out_string(out, "cpu", record->cpu);
    bench_json_out_string(out, "date", record->date);
    bench_json_out_string(out, "commit", record->commit);
    bench_json_out_bool(out, "dirty", record->dirty);
    bench_json_out_string(out, "command", record->command);
    bench_json_out_string(out, "notes", record->notes);
    bench_json_out_close(out);
}

static int write_file(FILE *file, const struct bench_record *records, size_t count)
{
    struct bench_json_out out;
    int failed;

    bench_json_out_begin(&out, file);
    bench_json_out_array(&out, "records");
    for (size_t i = 0; i < count; i++)
        write_record(&out, &records[i]);
    bench_json_out_close(&out);
    bench_json_out_end(&out);
    failed = fflush(file) || ferror(file);
    return fclose(file) || failed ? -1 : 0;
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
    if (write_file(file, records, count) || rename(beside, path)) {
        fail(why, why_bytes, path, strerror(errno));
        unlink(beside);
        return -1;
    }
    return 0;
}

/* ---- reading ---- */

struct text_field {
    const char *key;
    size_t offset, bytes;
};
#define PLACE(field) offsetof(struct bench_record, field), sizeof(((struct bench_record *)0)->field)
static const struct text_field text_fields[] = {
    {"name", PLACE(name)},     {"unit", PLACE(unit)},       {"better", PLACE(better)},
    {"device", PLACE(device)}, {"cpu", PLACE(cpu)},         {"date", PLACE(date)},
    {"commit", PLACE(commit)}, {"command", PLACE(command)}, {"notes", PLACE(notes)},
};
#undef PLACE
#define TEXT_FIELDS (sizeof(text_fields) / sizeof(text_fields[0]))
#define ALL_SEEN ((1u << (TEXT_FIELDS + 2)) - 1)

/* Return: the field's bit, 0 if it could not be read. */
static unsigned read_member(struct bench_json *json, const char *key, struct bench_record *record)
{
    for (size_t i = 0; i < TEXT_FIELDS; i++)
        if (!strcmp(key, text_fields[i].key))
            return bench_json_string(json, (char *)record + text_fields[i].offset,
                                     text_fields[i].bytes)
                       ? 1u << i
                       : 0;
    if (!strcmp(key, "value"))
        return bench_json_double(json, &record->value) ? 1u << TEXT_FIELDS : 0;
    if (!strcmp(key, "dirty"))
        return bench_json_bool(json, &record->dirty) ? 2u << TEXT_FIELDS : 0;
    bench_json_fail(json, "a member that no record has");
    return 0;
}

static bool read_record(struct bench_json *json, struct bench_record *record)
{
    char key[32];
    unsigned seen = 0;
    int more;

    bench_json_object(json);
    while ((more = bench_json_key(json, key, sizeof(key))) > 0) {
        unsigned bit = read_member(json, key, record);
        if (!bit)
            return false;
        if (seen & bit)
            return bench_json_fail(json, "a member appears twice");
        seen |= bit;
    }
    if (!more && seen != ALL_SEEN)
        return bench_json_fail(json, "a member of a record is missing");
    if (!more && strcmp(record->better, "lower") != 0 && strcmp(record->better, "higher") != 0)
        return bench_json_fail(json, "better is neither lower nor higher");
    return !more;
}

static int read_records(struct bench_json *json, struct bench_record *records)
{
    char key[32];
    int count = 0;

    bench_json_object(json);
    if (bench_json_key(json, key, sizeof(key)) != 1 || strcmp(key, "records") != 0)
        bench_json_fail(json, "expected \"records\"");
    bench_json_array(json);
    while (bench_json_element(json) > 0) {
        if (count == BENCH_RECORDS_MAX)
            bench_json_fail(json, "more records than a file may have");
        else if (read_record(json, &records[count]))
            count++;
        if (json->error)
            return -1;
    }
    if (bench_json_key(json, key, sizeof(key)) > 0)
        bench_json_fail(json, "something beside \"records\"");
    return bench_json_end(json) ? count : -1;
}

int bench_records_read(const char *path, struct bench_record *records, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(FILE_BYTES_MAX) : NULL;
    struct bench_json json;
    size_t bytes;
    int count;

    if (!text) {
        fail(why, why_bytes, path, strerror(errno));
        if (file)
            fclose(file);
        return -1;
    }
    bytes = fread(text, 1, FILE_BYTES_MAX, file);
    fclose(file);
    memset(records, 0, BENCH_RECORDS_MAX * sizeof(records[0]));
    bench_json_init(&json, text, bytes);
    count = read_records(&json, records);
    if (count < 0)
        fail(why, why_bytes, path, json.error ? json.error : "it ends too early");
    free(text);
    return count;
}
