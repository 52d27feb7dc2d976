/*
 * table.c - records as Markdown, a table for each device and processor.
 *
 * Two kinds of records are kept and not shown. A value below zero is noise of a difference. And a
 * figure of a build that is more than a day older than the table's newest is not of what is there
 * now: suites of one card are measured in one go.
 */
#include "bench/support/table.h"

#include "bench/support/record.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fail(char *why, size_t why_bytes, const char *what, const char *detail)
{
    snprintf(why, why_bytes, "%s: %s", what, detail);
    return -1;
}

/* A cell's text; what would end the cell is escaped. */
static void print_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void print_record(FILE *out, const struct bench_record *record)
{
    fprintf(out, record->value >= 1000 ? "| `%s` | %.0f | " : "| `%s` | %.3g | ", record->name,
            record->value);
    print_text(out, record->unit);
    fprintf(out, " | %s | %.10s | %.12s | ", record->better, record->date, record->commit);
    print_text(out, record->notes);
    fputs(" |\n", out);
}

struct records {
    struct bench_record *record;
    size_t count;
};

static int add_file(struct records *all, const char *directory, const char *name, char *why,
                    size_t why_bytes)
{
    static struct bench_record records[BENCH_RECORDS_MAX];
    char path[PATH_MAX];
    struct bench_record *larger;
    int count, length = snprintf(path, sizeof(path), "%s/%s", directory, name);

    if (length < 0 || (size_t)length >= sizeof(path))
        return fail(why, why_bytes, name, "the path is too long");
    count = bench_records_read(path, records, why, why_bytes);
    if (count < 0)
        return -1;
    for (int i = 0; i < count; i++)
        if (records[i].dirty)
            return fail(why, why_bytes, path, "a figure of uncommitted changes");
    larger = reallocarray(all->record, all->count + (size_t)count + 1, sizeof(*larger));
    if (!larger)
        return fail(why, why_bytes, path, strerror(errno));
    all->record = larger;
    memcpy(larger + all->count, records, (size_t)count * sizeof(*larger));
    all->count += (size_t)count;
    return 0;
}

static int is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot && !strcmp(dot, ".json");
}

static int read_all(struct records *all, const char *directory, char *why, size_t why_bytes)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, is_json, alphasort), failed = 0;

    if (count < 0)
        return fail(why, why_bytes, directory, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (!failed)
            failed = add_file(all, directory, entries[i]->d_name, why, why_bytes);
        free(entries[i]);
    }
    free(entries);
    return failed;
}

static bool same_machine(const struct bench_record *a, const struct bench_record *b)
{
    return !strcmp(a->device, b->device) && !strcmp(a->cpu, b->cpu);
}

/* Days since some day; 0: it is no date. */
static long day_of(const char *date)
{
    struct tm tm = {0};

    return strptime(date, "%Y-%m-%d", &tm) ? (long)(timegm(&tm) / 86400) : 0;
}

/* The records of one machine, which are those of @first's. */
static void print_machine(FILE *out, const struct records *all, const struct bench_record *first)
{
    long newest = 0;

    for (size_t i = 0; i < all->count; i++)
        if (same_machine(&all->record[i], first) && day_of(all->record[i].date) > newest)
            newest = day_of(all->record[i].date);
    fprintf(out, "\n## %s (", first->device);
    print_text(out, first->cpu);
    fputs(")\n\n| figure | value | unit | better | date | commit | notes |\n"
          "| --- | ---: | --- | --- | --- | --- | --- |\n",
          out);
    for (size_t i = 0; i < all->count; i++) {
        const struct bench_record *record = &all->record[i];
        if (same_machine(record, first) && record->value >= 0 && day_of(record->date) + 1 >= newest)
            print_record(out, record);
    }
}

/* A machine's table stands where its first record does. */
static void print_all(FILE *out, const struct records *all)
{
    for (size_t i = 0; i < all->count; i++) {
        size_t first = 0;

        while (!same_machine(&all->record[first], &all->record[i]))
            first++;
        if (first == i)
            print_machine(out, all, &all->record[i]);
    }
    if (all->count)
        fputc('\n', out);
}

int bench_table_print(FILE *out, const char *directory, char *why, size_t why_bytes)
{
    struct records all = {NULL, 0};
    int failed = read_all(&all, directory, why, why_bytes);

    if (!failed)
        print_all(out, &all);
    free(all.record);
    return failed;
}
