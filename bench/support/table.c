/* table.c - records of all devices as one Markdown table. */
#include "bench/support/table.h"

#include "bench/support/record.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
    fprintf(out, " | %s | ", record->better);
    print_text(out, record->device);
    fputs(" | ", out);
    print_text(out, record->cpu);
    fprintf(out, " | %.10s | %.12s%s | ", record->date, record->commit,
            record->dirty ? " + changes" : "");
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

static bool is_of(const struct bench_record *record, const char *name)
{
    return strcmp(record->name, name) == 0;
}

/* A figure of several devices stands in neighbouring lines, where the first of them stands. */
static void print_all(FILE *out, const struct records *all)
{
    if (all->count)
        fputs("| figure | value | unit | better | device | processor | date | commit | notes |\n"
              "| --- | ---: | --- | --- | --- | --- | --- | --- | --- |\n",
              out);
    for (size_t i = 0; i < all->count; i++) {
        const char *name = all->record[i].name;
        size_t first = 0;

        while (!is_of(&all->record[first], name))
            first++;
        for (size_t j = first; first == i && j < all->count; j++)
            if (is_of(&all->record[j], name))
                print_record(out, &all->record[j]);
    }
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
